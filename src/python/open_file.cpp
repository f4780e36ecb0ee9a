#include "open_file.hpp"

#include <charconv>
#include <limits>

#include "errors.hpp"
#include "gil.hpp"
#include "to_numpy.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

// Below this a read takes less time than giving the GIL away and getting it back.
constexpr std::uint64_t kReleaseFrom = std::uint64_t{64} << 10;

[[noreturn]] void fail_device(py::handle object, const char* why = "") {
  raise_safetensor_error("device " + py::cast<std::string>(py::str(object)) + " is invalid" + why);
}

/// The index in "cuda:1"; 0 when none is said. Upstream's errors for the rest.
std::uint64_t device_index(py::handle object, std::string_view device) {
  const std::size_t colon = device.find(':');
  if (colon == std::string_view::npos) return 0;
  std::string_view text = device.substr(colon + 1);
  if (text.find(':') != std::string_view::npos) fail_device(object);
  const auto refuse = [&](const char* why) {
    throw py::value_error(std::string(why) + ": device " + std::string(device));
  };
  std::uint64_t index = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (text.empty()) refuse("cannot parse integer from empty string");
  if (error == std::errc::result_out_of_range) refuse("number too large to fit in target type");
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse("invalid digit found in string");
  }
  return index;
}

Device other_device(std::string name) {
  const auto kind = name.starts_with("cuda") ? Device::Kind::kCuda : Device::Kind::kOther;
  py::object object = py::str(name);
  return {kind, std::move(name), std::move(object)};
}

/// Paddle calls CUDA's devices gpu:0, gpu:1; the other words are torch's.
Device paddle_device(const Device& device) {
  const std::size_t colon = device.name.find(':');
  const bool is_gpu = device.kind == Device::Kind::kCuda || py::isinstance<py::int_>(device.object);
  std::string name = device.name;
  if (is_gpu) name = "gpu:" + name.substr(colon == std::string::npos ? 0 : colon + 1);
  py::object object = py::str(name);
  return {Device::Kind::kOther, std::move(name), std::move(object)};
}

Device device_of_text(py::handle object, std::string_view text) {
  if (text == "cpu" || text == "cpu:0") return {};
  if (text == "meta") return {Device::Kind::kMeta, "meta", py::str("meta")};
  const std::string_view kind = text.substr(0, text.find(':'));
  if (kind == "mps") {
    if (device_index(object, text) != 0) fail_device(object, ": only mps or mps:0 is supported");
    return other_device("mps");
  }
  for (const char* const known : {"cuda", "npu", "hpu", "xpu", "xla", "mlu", "musa"}) {
    if (kind != known) continue;
    return other_device(std::string(kind) + ":" + std::to_string(device_index(object, text)));
  }
  fail_device(object);
}

struct Words {
  const char* name;   ///< of its module here
  const char* title;  ///< as its makers write it
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

/// MLX and Paddle take the bits, so that neither needs ml_dtypes beside it.
Exotic exotic_of(Framework framework) noexcept {
  return framework == Framework::kMlx || framework == Framework::kPaddle ? Exotic::kBits
                                                                         : Exotic::kMlDtypes;
}

/// Functions from a NumPy array to the frameworks that have no faster way yet.
py::object converter_of(Framework framework) {
  if (framework == Framework::kTorch || framework == Framework::kNumpy) return {};
  return py::module_::import("safetensors._frameworks").attr("converter")(name(framework));
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
  raise_safetensor_error("framework " + std::string(text) + " is invalid");
}

const char* name(Framework framework) noexcept { return words_of(framework).name; }

Device device_of(py::handle object) {
  if (object.is_none()) return {};
  if (PyUnicode_Check(object.ptr())) return device_of_text(object, text_of(object, "device"));
  if (PyLong_Check(object.ptr())) {
    const long long index = PyLong_AsLongLong(object.ptr());
    if (index == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
    if (index < 0) fail_device(object);
    return {Device::Kind::kOther, std::to_string(index), py::int_(index)};
  }
  // torch.device, without importing torch for the test.
  if (std::string_view(Py_TYPE(object.ptr())->tp_name) == "torch.device") {
    const py::str text(object);
    return device_of_text(object, text_of(text, "device"));
  }
  fail_device(object);
}

Backend backend_of(py::handle object) {
  const std::string_view text = text_of(object, "backend");
  if (text == "mmap") return Backend::kMmap;
  if (text == "pread") return Backend::kPread;
  if (text == "auto") return Backend::kAuto;
  if (text == "direct") return Backend::kDirect;
  raise_safetensor_error(
      "backend \"" + std::string(text) +
      "\" is invalid (expected one of: \"mmap\", \"pread\") or \"auto\" or \"direct\"");
}

OpenFile::OpenFile(SafeOpen file, Framework framework, Device device)
    : file_(std::move(file)), framework_(framework), device_(std::move(device)) {
  if (framework_ == Framework::kPaddle && device_.object && device_.kind != Device::Kind::kMeta) {
    device_ = paddle_device(device_);
  } else if (framework_ != Framework::kTorch && device_.kind != Device::Kind::kCpu) {
    raise_safetensor_error("Device " + device_.name + " is not supported for framework " +
                           name(framework_));
  }
  if (framework_ == Framework::kTorch) {
    import_torch();
  } else if (is_mapped()) {
    memory_ = make_memory(file_.mapping(), file_.mapping()->bytes());
  }
  converter_ = converter_of(framework_);
}

TensorView OpenFile::view(const TensorInfo& info) const {
  if (is_mapped() || info.nbytes() < kReleaseFrom) return file_.get_tensor(info);
  const GilRelease release;
  return file_.get_tensor(info, python_interrupt());
}

std::vector<TensorView> OpenFile::views() const {
  if (is_mapped()) return file_.get_tensors();
  const GilRelease release;
  return file_.get_tensors(python_interrupt());
}

py::object OpenFile::to_array(const TensorView& view) const {
  if (framework_ == Framework::kTorch) return to_torch(view);
  const Exotic exotic = exotic_of(framework_);
  if (!has_array_type(view.dtype, exotic)) {
    raise_safetensor_error("Dtype not understood: " + std::string(safetensors::name(view.dtype)) +
                           ": " + words_of(framework_).title + " has no such type");
  }
  return to_numpy(view, memory_, exotic);
}

py::object OpenFile::finish(py::object array, Dtype dtype) const {
  if (framework_ == Framework::kTorch) return move_to_device(std::move(array), device_);
  if (!converter_) return array;
  py::object tensor = converter_(std::move(array), safetensors::name(dtype));
  return device_.object ? tensor.attr("to")(device_.object) : tensor;
}

py::object OpenFile::hand_out(const TensorView& view) const {
  return finish(to_array(view), view.dtype);
}

py::object OpenFile::hand_out(const TensorInfo& info) const {
  if (device_.kind == Device::Kind::kCuda || device_.kind == Device::Kind::kMeta) {
    return to_torch_device(file_, info, device_);
  }
  return hand_out(view(info));
}

std::shared_ptr<const OpenFile> Handle::file() const {
  std::shared_ptr<const OpenFile> file;
  {
    const std::lock_guard lock(mutex_);
    file = file_;
  }
  if (!file) raise_safetensor_error("File is closed");
  return file;
}

std::string Handle::describe() const {
  std::shared_ptr<const OpenFile> file;
  std::filesystem::path path;
  {
    const std::lock_guard lock(mutex_);
    file = file_;
    path = path_;
  }
  const std::filesystem::path& shown = file ? file->file().path() : path;
  const std::string text = "path=" + py::cast<std::string>(py::repr(to_object(shown)));
  if (!file) return text + " closed";
  return text + " framework='" + name(file->framework()) +
         "' tensors=" + std::to_string(file->file().header().size());
}

void Handle::close() {
  std::shared_ptr<const OpenFile> dropped;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  if (file_) path_ = file_->file().path();
  dropped.swap(file_);
}

}  // namespace safetensors::python
