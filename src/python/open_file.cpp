#include "open_file.hpp"

#include "gil.hpp"
#include "open_hook.hpp"
#include "python_source.hpp"
#include "to_numpy.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

using Kind = DeviceSpec::Kind;

// A shorter read takes less time than releasing the GIL and acquiring it again.
constexpr std::uint64_t kGilReleaseThreshold = std::uint64_t{64} << 10;

struct Words {
  const char* name;   ///< of its module in this package
  const char* title;  ///< in error texts
};

constexpr Words words_of(Framework framework) noexcept {
  switch (framework) {
    case Framework::kTorch:
      return {"torch", "torch"};
    case Framework::kNumpy:
      return {"numpy", "NumPy"};
    case Framework::kTensorflow:
      return {"tensorflow", "TensorFlow"};
    case Framework::kFlax:
      return {"flax", "JAX"};
    case Framework::kMlx:
      return {"mlx", "MLX"};
    case Framework::kPaddle:
      return {"paddle", "Paddle"};
  }
  return {"", ""};
}

/// MLX and Paddle take the bits, so that they do not need ml_dtypes.
MlDtypesMode ml_dtypes_mode_of(Framework framework) noexcept {
  return framework == Framework::kMlx || framework == Framework::kPaddle ? MlDtypesMode::kBits
                                                                         : MlDtypesMode::kMlDtypes;
}

/// Returns whether tensors that the program gets may be views of the file, where upstream's are
/// copies. TensorFlow decides itself; the converters of the others copy.
bool keeps_views(Framework framework) noexcept {
  return framework == Framework::kNumpy || framework == Framework::kTensorflow;
}

/// Returns the function that converts NumPy arrays of a file, for frameworks that have no faster
/// way.
py::object converter_of(Framework framework, const std::filesystem::path& file) {
  if (framework == Framework::kTorch || framework == Framework::kNumpy) return {};
  const py::object make = py::module_::import("safetensors._frameworks").attr("converter");
  return make(name(framework), to_object(file));
}

}  // namespace

Framework framework_of(py::handle object) {
  const std::string_view text = text_of(object, "framework");
  if (text == "pt" || text == "torch" || text == "pytorch") return Framework::kTorch;
  if (text == "np" || text == "numpy") return Framework::kNumpy;
  if (text == "tf" || text == "tensorflow") return Framework::kTensorflow;
  if (text == "jax" || text == "flax") return Framework::kFlax;
  if (text == "mlx") return Framework::kMlx;
  if (text == "paddle" || text == "paddlepaddle") return Framework::kPaddle;
  raise_safetensor_error(
      ErrorCode::kInvalidArgument,
      "framework " + std::string(text) +
          " is invalid (expected one of: \"pt\", \"np\", \"tf\", \"flax\", \"mlx\", \"paddle\")");
}

const char* name(Framework framework) noexcept { return words_of(framework).name; }

Backend backend_of(py::handle object) {
  const std::string_view text = text_of(object, "backend");
  if (text == "mmap") return Backend::kMmap;
  if (text == "pread") return Backend::kPread;
  if (text == "auto") return Backend::kAuto;
  if (text == "direct") return Backend::kDirect;
  raise_safetensor_error(
      ErrorCode::kInvalidArgument,
      "backend \"" + std::string(text) +
          "\" is invalid (expected one of: \"mmap\", \"pread\"); this package also has "
          "\"auto\" and \"direct\"");
}

OpenFile::OpenFile(SafeOpen file, Framework framework, DeviceSpec device)
    : file_(std::move(file)), framework_(framework), device_(std::move(device)) {
  const bool is_plain = device_.kind == Kind::kCpu || device_.kind == Kind::kMeta;
  if (framework_ == Framework::kPaddle && !is_plain) {
    device_ = to_paddle_device(device_);
  } else if (framework_ != Framework::kTorch && device_.kind != Kind::kCpu) {
    raise_safetensor_error(
        ErrorCode::kInvalidArgument,
        "Device " + device_.name() + " is not supported for framework " + name(framework_));
  }
  if (framework_ != Framework::kTorch && is_mapped()) {
    memory_ = make_memory(file_.mapping(), file_.mapping()->bytes());
  }
  converter_ = converter_of(framework_, file_.path());
}

std::shared_ptr<const PythonSource> OpenFile::python_source() const {
  if (file_.backend() != Backend::kSource) return nullptr;
  return std::dynamic_pointer_cast<const PythonSource>(unchecked(file_.source()));
}

Interrupt OpenFile::interrupt() const {
  std::shared_ptr<const PythonSource> source = python_source();
  if (!source) return python_interrupt();
  return interrupt_of({std::move(source)});
}

TensorView OpenFile::view(const TensorInfo& info) const {
  const bool is_short = info.nbytes() < kGilReleaseThreshold && file_.backend() != Backend::kSource;
  if (is_mapped() || is_short) return file_.get_tensor(info);
  const Interrupt interrupt = this->interrupt();
  const GilRelease release;
  return file_.get_tensor(info, interrupt);
}

std::vector<TensorView> OpenFile::views() const {
  if (is_mapped()) return file_.get_tensors();
  const Interrupt interrupt = this->interrupt();
  const GilRelease release;
  try {
    return file_.get_tensors(interrupt);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDamaged) throw;
    const std::shared_ptr<const ByteSource> source = file_.source();
    std::vector<Damage> damage = find_damage(*source, 0, source->size());
    if (damage.empty()) throw;
    fail_damaged(std::move(damage));
  }
}

py::object OpenFile::to_array(const TensorView& view, py::object memory) const {
  if (framework_ == Framework::kTorch) return to_torch(view, &file_.path());
  const MlDtypesMode mode = ml_dtypes_mode_of(framework_);
  if (!has_array_type(view.dtype, mode)) {
    fail_dtype(view.dtype, std::string(words_of(framework_).title) + " has no such type",
               {view.name, &file_.path()});
  }
  if (memory && keeps_views(framework_)) install_open_hook();
  return to_numpy(view, &file_.path(), std::move(memory), mode);
}

py::object OpenFile::to_framework(py::object array, Dtype dtype, std::string_view name) const {
  if (framework_ == Framework::kTorch) return move_to_device(std::move(array), device_);
  if (!converter_) return array;
  py::object tensor = converter_(std::move(array), to_str(dtype), to_unicode(name));
  return device_.kind == Kind::kCpu ? tensor : tensor.attr("to")(device_.object);
}

py::object OpenFile::to_framework(const TensorView& view) const {
  return to_framework(to_array(view), view.dtype, view.name);
}

py::object OpenFile::to_framework(const TensorInfo& info) const {
  if (device_.kind == Kind::kCuda || device_.kind == Kind::kMeta) {
    return to_torch_device(file_, info, device_);
  }
  return to_framework(view(info));
}

std::shared_ptr<const OpenFile> Handle::file() const {
  std::shared_ptr<const OpenFile> file;
  {
    const std::lock_guard lock(mutex_);
    file = file_;
  }
  if (!file) raise_safetensor_error(ErrorCode::kInvalidArgument, "File is closed");
  return file;
}

std::filesystem::path Handle::path() const {
  const std::lock_guard lock(mutex_);
  return file_ ? file_->file().path() : path_;
}

std::string Handle::describe() const {
  std::shared_ptr<const OpenFile> file;
  {
    const std::lock_guard lock(mutex_);
    file = file_;
  }
  const std::string text = "path=" + py::cast<std::string>(py::repr(to_object(path())));
  if (!file) return text + " closed";
  return text + " framework='" + name(file->framework()) +
         "' tensors=" + std::to_string(file->file().header().size());
}

int Handle::traverse(visitproc visit, void* argument) const {
  // A thread that the collector has stopped may have locked it.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  // The reader must have no other owner, such as a slice or a load that goes on.
  if (!lock || !file_ || file_.use_count() != 1) return 0;
  const std::shared_ptr<const PythonSource> source = file_->python_source();
  constexpr long kOwners = 2;  // the file, and this function
  if (!source || source.use_count() != kOwners) return 0;
  return source->traverse(visit, argument);
}

void Handle::close() {
  // Destroyed after the lock is released: it may be the last owner, and closing a file takes long.
  std::shared_ptr<const OpenFile> dropped;
  const std::lock_guard lock(mutex_);
  if (file_) path_ = file_->file().path();
  dropped.swap(file_);
}

}  // namespace safetensors::python
