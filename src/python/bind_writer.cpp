// _FileWriter, the compiled part of SafeWriter, and _plan_layout.
#include <pybind11/numpy.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtypes.hpp"
#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "loan.hpp"
#include "open_file.hpp"
#include "python_index.hpp"
#include "python_sink.hpp"
#include "register.hpp"
#include "safetensors/detail/serializing.hpp"
#include "safetensors/detail/shared_blocks.hpp"
#include "save_arguments.hpp"
#include "save_target.hpp"
#include "shared_writer.hpp"
#include "tensor_spec.hpp"
#include "to_numpy.hpp"
#include "to_torch.hpp"
#include "write_plan.hpp"

namespace safetensors::python {
namespace {

/// Runs `work` without the GIL, and adds the prefix of upstream's texts to errors of the core.
template <typename Work>
auto serializing(const std::filesystem::path& path, const Work& work) {
  return saving(path, [&] {
    const GilRelease release;
    return detail::serializing(work);
  });
}

/// The bytes of a tensor, and the owner of the shape.
struct Stored {
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;
  Dtype dtype = Dtype::kU8;
  py::handle owner;  ///< of the bytes; null for a TensorSpec, which is an address
};

/// Returns whether torch is imported and the object can be a tensor of it.
bool is_torch(py::handle object) {
  static bool is_imported = false;  // guarded by the GIL; modules are not unloaded
  const std::string_view name = Py_TYPE(object.ptr())->tp_name;
  if (name != "Tensor" && name != "Parameter") return false;
  if (!is_imported) {
    const auto module =
        py::reinterpret_steal<py::object>(PyImport_GetModule(py::str("torch").ptr()));
    PyErr_Clear();
    is_imported = static_cast<bool>(module);
  }
  return is_imported;
}

/// Returns the bytes of a TensorSpec, or of a tensor of torch or NumPy in the layout of files.
std::optional<Stored> stored(py::handle tensor) {
  if (is_torch(tensor)) {  // first, because it is the most frequent
    std::optional<TorchBytes> found = bytes_of_torch(tensor);
    if (!found) return std::nullopt;
    return Stored{std::move(found->shape), found->bytes, found->dtype, tensor};
  }
  if (py::isinstance<TensorSpec>(tensor)) {
    const TensorData data = py::cast<const TensorSpec&>(tensor).data(std::string_view());
    return Stored{{data.shape.begin(), data.shape.end()}, data.bytes, data.dtype, {}};
  }
  if (!py::isinstance<py::array>(tensor)) return std::nullopt;
  const auto array = py::reinterpret_borrow<py::array>(tensor);
  const std::optional<Dtype> dtype = dtype_of_array(array);
  if (!dtype || (array.flags() & py::array::c_style) == 0) return std::nullopt;
  return Stored{
      {array.shape(), array.shape() + array.ndim()},
      {static_cast<const std::byte*>(array.data()), static_cast<std::size_t>(array.nbytes())},
      *dtype,
      tensor};
}

std::string described(Dtype dtype, std::span<const std::uint64_t> shape) {
  return std::string(safetensors::name(dtype)) + " " +
         py::cast<std::string>(py::str(to_list(shape)));
}

void check_cast(const OwnSpec& spec, const TensorInfo& info, const std::filesystem::path& path) {
  try {
    check_castable(info.dtype, spec.dtype);
  } catch (const Error& error) {
    throw error.with_context(
        "Error while serializing: tensor `" + spec.name + "` of " + path.string() + ": ", {},
        spec.name);
  }
}

/// The value of a _FileWriter.
///
/// Methods release the GIL while they work, so that other threads may call others meanwhile: see
/// SharedWriter.
class Writer {
 private:
  /// Calls `work(file)` without the GIL.
  template <typename Work>
  auto with_writer(const Work& work) {
    return serializing(path_, [&] { return writer_.write_with(work); });
  }

 public:
  Writer(py::handle target, bool seeks, py::handle specs, py::handle options)
      : has_plan_(!specs.is_none()), options_(options) {
    std::optional<LayoutPlan> plan;
    if (has_plan_) {
      std::vector<OwnSpec> rows = specs_of(specs);
      plan = saving({}, [&] {
        return detail::serializing(
            [&] { return plan_of(rows, options_.metadata, options_.layout, options_.data_begin); });
      });
      std::ranges::move(rows, std::back_inserter(specs_));
      for (const OwnSpec& spec : specs_) options_.sums->add(spec.name, spec.dtype, spec.shape);
    }
    WriterOptions how = options_.writer_options();
    const auto make = [&](auto&& sink) {
      writer_.set(plan ? FileWriter(sink(), std::move(*plan), std::move(how))
                       : FileWriter(sink(), options_.metadata_or_null(), std::move(how)));
    };
    if (PyCallable_Check(target.ptr()) != 0) {
      auto function = py::reinterpret_borrow<py::object>(target);
      auto sink = make_python_sink(std::move(function), seeks);
      serializing({}, [&] { make([&] { return std::move(sink); }); });
    } else if (PyLong_Check(target.ptr()) != 0) {
      const int descriptor = py::cast<int>(target);
      path_ = "descriptor " + std::to_string(descriptor);
      serializing(path_, [&] { make([&] { return make_descriptor_sink(descriptor, path_); }); });
    } else {
      const SaveTarget to(target, "target");
      path_ = to.path();
      serializing(path_, [&] {
        make([&] { return to.make_sink(python_interrupt(), options_.sums->before_rename(path_)); });
      });
    }
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { abort(); }

  std::size_t add(py::handle name, py::handle dtype, py::handle shape) {
    OwnSpec spec = spec_of(name, dtype, shape);
    const std::size_t at = with_writer([&](FileWriter& file) { return file.add(spec.view()); });
    options_.sums->add(spec.name, spec.dtype, spec.shape);
    const std::lock_guard lock(specs_mutex_);
    specs_.push_back(std::move(spec));
    return at;
  }

  /// Writes a tensor. Returns false if it needs preparation.
  bool write(std::size_t tensor, py::handle object) {
    const std::optional<Stored> found = stored(object);
    if (!found) return false;
    const OwnSpec* const spec = spec_at(tensor);
    if (spec != nullptr && (spec->dtype != found->dtype || spec->shape != found->shape)) {
      throw Error(ErrorCode::kInvalidTensorInfo,
                  "Error while serializing: tensor `" + spec->name + "` is " +
                      described(spec->dtype, spec->shape) + " in the specs, but " +
                      described(found->dtype, found->shape) + " was given",
                  ErrorContext{.subject = spec->name});
    }
    const MemoryOwner owner(found->owner, found->bytes);
    write_part({tensor, 0, found->bytes}, spec != nullptr,
               [&](FileWriter& file) { file.write(tensor, found->bytes); });
    return true;
  }

  void write_bytes(std::size_t tensor, py::handle begin, py::handle buffer) {
    const BufferView view(buffer, "tensor");
    const MemoryOwner owner(owner_of_buffer(buffer), view.bytes());
    const bool is_known = spec_at(tensor) != nullptr;
    if (begin.is_none()) {
      write_part({tensor, 0, view.bytes()}, is_known,
                 [&](FileWriter& file) { file.write(tensor, view.bytes()); });
      return;
    }
    const std::uint64_t at = size_of(begin, "begin");
    write_part({tensor, at, view.bytes()}, is_known,
               [&](FileWriter& file) { file.write_at(tensor, at, view.bytes()); });
  }

  /// Writes the part of a tensor that an index expression selects.
  void write_slice(std::size_t tensor, py::handle index, py::handle dtype, py::handle shape,
                   py::handle buffer) {
    const OwnSpec* const known = spec_at(tensor);
    if (known == nullptr) throw py::index_error("there is no such tensor");
    const OwnSpec& spec = *known;
    const std::uint64_t count = std::accumulate(spec.shape.begin(), spec.shape.end(),
                                                std::uint64_t{1}, std::multiplies<>());
    const TensorInfo info{spec.name, spec.shape, 0, count * bit_size(spec.dtype) / 8, spec.dtype};
    const std::optional<Part> part =
        saving({}, [&] { return detail::serializing([&] { return select_part(info, index); }); });
    if (!part) {
      PyErr_SetString(PyExc_TypeError,
                      "an index of write_slice consists of integers, slices, \"...\" and None");
      throw py::error_already_set();
    }
    const OwnSpec given = spec_of(py::str(spec.name), dtype, shape);
    if (given.dtype != spec.dtype || given.shape != part->selection.shape) {
      throw Error(ErrorCode::kInvalidTensorInfo,
                  "Error while serializing: the part of tensor `" + spec.name + "` is " +
                      described(spec.dtype, part->selection.shape) + ", but " +
                      described(given.dtype, given.shape) + " was given",
                  ErrorContext{.subject = spec.name});
    }
    const BufferView view(buffer, "part");
    const MemoryOwner owner(owner_of_buffer(buffer), view.bytes());
    with_writer([&](FileWriter& file) { file.write_runs(tensor, part->runs, view.bytes()); });
  }

  /// Copies tensors of an open file: a list of (index, name in the file). With `cast`, those of
  /// another dtype are converted.
  void copy(const Handle& handle, py::handle pairs, bool cast) {
    const std::shared_ptr<const OpenFile> opened = handle.file();
    const SafeOpen& file = opened->file();
    std::vector<TensorCopy> copies;
    std::vector<TensorCast> casts;
    for (const py::handle pair : pairs) {
      const auto fields = py::cast<py::tuple>(pair);
      const auto tensor = py::cast<std::size_t>(fields[0]);
      const TensorInfo& info = file.at(text_of(fields[1], "name"));
      if (const OwnSpec* const known = spec_at(tensor)) {
        const OwnSpec& spec = *known;
        const bool has_dtype = spec.dtype == info.dtype || cast;
        if (!has_dtype || !std::ranges::equal(spec.shape, info.shape)) {
          throw Error(ErrorCode::kInvalidTensorInfo,
                      "Error while serializing: tensor `" + spec.name + "` is " +
                          described(spec.dtype, spec.shape) + " in the specs, but " +
                          described(info.dtype, info.shape) + " in " + file.path().string(),
                      ErrorContext{.subject = spec.name});
        }
        if (spec.dtype != info.dtype) {
          check_cast(spec, info, file.path());
          const std::uint64_t count = info.nbytes() * 8 / bit_size(info.dtype);
          casts.push_back({{tensor, file.position(info)}, count, info.dtype, spec.dtype});
          continue;
        }
      }
      copies.push_back({tensor, file.position(info)});
    }
    const std::shared_ptr<const ByteSource> source = file.source();
    const py::capsule keeper(new std::shared_ptr<const void>(source), [](void* kept) {
      delete static_cast<std::shared_ptr<const void>*>(kept);
    });
    const MemoryOwner owner(keeper, source->memory());
    with_writer([&](FileWriter& writer) {
      writer.copy(*source, copies);
      for (const TensorCast& each : casts) copy_cast(writer, *source, each);
    });
  }

  [[nodiscard]] py::list missing() {
    const auto found = serializing(path_, [&] {
      return writer_.read_with([](const FileWriter& file) { return file.missing(); });
    });
    py::list result;
    for (const std::size_t tensor : found) result.append(tensor);
    return result;
  }

  [[nodiscard]] std::uint64_t nbytes_written() const noexcept { return writer_.nbytes_written(); }
  [[nodiscard]] bool is_in_call() const noexcept { return writer_.is_in_call(); }
  [[nodiscard]] bool is_committed() const noexcept { return is_committed_; }

  void commit() {
    serializing(path_, [&] {
      writer_.commit([&](FileWriter& file) {
        file.commit();
        is_committed_ = true;
        options_.sums->commit(options_.fsync);
      });
    });
  }

  void abort() {
    const GilRelease release;  // the sink may need the GIL to end
    if (writer_.abort()) options_.sums->abort();
  }

 private:
  /// Calls `write(file)`, which writes a part of a tensor, and hashes the part. Unless the tensor
  /// is known, the file refuses it.
  template <typename Write>
  void write_part(const detail::WriteSums::Part& part, bool is_known, const Write& write) {
    with_writer([&](FileWriter& file) {
      if (!is_known) return write(file);
      options_.sums->write_beside({&part, 1}, [&] { write(file); });
    });
  }

  /// Returns null if there is no such tensor.
  [[nodiscard]] const OwnSpec* spec_at(std::size_t tensor) {
    std::unique_lock lock(specs_mutex_, std::defer_lock);
    if (!has_plan_) lock.lock();
    return tensor < specs_.size() ? &specs_[tensor] : nullptr;
  }

  std::filesystem::path path_;
  bool has_plan_;  // so that no tensor is added
  std::mutex specs_mutex_;
  std::deque<OwnSpec> specs_;  // whose elements stay where they are
  SaveArguments options_;
  std::atomic<bool> is_committed_ = false;
  SharedWriter writer_;
};

py::object write_tensor(Writer& writer, py::handle tensor, py::handle data) {
  return py::bool_(writer.write(static_cast<std::size_t>(size_of(tensor, "tensor")), data));
}

/// Returns the bytes before the data, and of each tensor (begin, nbytes) in the file.
py::tuple plan_file(py::handle list, py::handle metadata, py::handle layout,
                    std::uint64_t data_begin) {
  const std::vector<OwnSpec> specs = specs_of(list);
  const std::optional<Metadata> given = metadata_of(metadata);
  const LayoutPlan plan =
      detail::serializing([&] { return plan_of(specs, given, layout_of(layout), data_begin); });
  py::list places;
  for (const TensorPlace& place : plan.places) {
    places.append(py::make_tuple(place.begin, place.nbytes));
  }
  return py::make_tuple(py::bytes(plan.prologue), places);
}

}  // namespace

void register_writer(py::module_& module) {
  Class<Writer>(module, "_FileWriter")
      .constructor(
          [](py::handle target, bool seeks, py::handle specs, py::handle options) {
            return std::make_unique<Writer>(target, seeks, specs, options);
          },
          py::arg("target"), py::arg("seeks"), py::arg("specs"), py::arg("options"))
      .method("add", &Writer::add, py::arg("name"), py::arg("dtype"), py::arg("shape"))
      .quick_method<&write_tensor>("write",
                                   "write($self, /, tensor, data)\n--\n\n"
                                   "Writes a tensor. Returns False if it needs preparation.",
                                   py::arg("tensor"), py::arg("data"))
      .method("write_bytes", &Writer::write_bytes, py::arg("tensor"), py::arg("begin"),
              py::arg("data"))
      .method("write_slice", &Writer::write_slice, py::arg("tensor"), py::arg("index"),
              py::arg("dtype"), py::arg("shape"), py::arg("data"))
      .method("copy", &Writer::copy, py::arg("file"), py::arg("tensors"), py::arg("cast"))
      .method("missing", &Writer::missing)
      .method("commit", &Writer::commit)
      .method("abort", &Writer::abort)
      .property("nbytes_written", &Writer::nbytes_written)
      .property("is_in_call", &Writer::is_in_call)
      .property("is_committed", &Writer::is_committed);
  define(module, "_specs_of_torch", &specs_of_torch, py::arg("tensors"), py::arg("type"),
         "_specs_of_torch(tensors, type)\n--\n\n"
         "Returns a dict of name to type(dtype, shape); None if a tensor needs preparation.");
  define(module, "_plan_layout", &plan_file, py::arg("specs"), py::arg("metadata"),
         py::arg("layout"), py::arg("data_begin") = 0,
         "_plan_layout(specs, metadata, layout, data_begin=0)\n--\n\n"
         "Returns the bytes before the data, and (begin, nbytes) of each tensor in the file.");
  module.add_object("_DISK_BLOCK_SIZE", to_int(kBlockSize));
  define(
      module, "_shareable_nbytes",
      [](std::uint64_t begin, std::uint64_t nbytes, std::uint64_t to) {
        return detail::shared_blocks(begin, nbytes, to).nbytes;
      },
      py::arg("begin"), py::arg("nbytes"), py::arg("to"),
      "_shareable_nbytes(begin, nbytes, to)\n--\n\n"
      "Returns how many bytes of a copy between two offsets can share disk space.");
}

}  // namespace safetensors::python
