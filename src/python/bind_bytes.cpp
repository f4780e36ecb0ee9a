// Files in memory: deserialize, and loading them into tensors.
#include <array>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "register.hpp"
#include "to_numpy.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

/// Opens a file in memory without copying it.
/// Lifetime: `file` must outlive the result.
SafeOpen open_memory(const BufferView& file) {
  return SafeOpen(std::make_shared<const MemorySource>(file.bytes()));
}

void read_without_gil(const SafeOpen& file, std::span<const TensorRead> reads) {
  const GilRelease release;
  file.read(reads, python_interrupt());
}

py::list deserialize(py::handle bytes) {
  const BufferView buffer(bytes, "bytes");
  const SafeOpen file = open_memory(buffer);
  py::list list(file.header().size());
  std::vector<TensorRead> reads;
  reads.reserve(file.header().size());
  const GcPause pause;
  const py::str dtype_key("dtype"), shape_key("shape"), data_key("data");
  Py_ssize_t i = 0;
  for (const TensorInfo& info : file.header().tensors()) {
    const auto data = py::reinterpret_steal<py::object>(
        PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(info.nbytes())));
    if (!data) throw py::error_already_set();
    const std::span<std::byte> to(reinterpret_cast<std::byte*>(PyByteArray_AS_STRING(data.ptr())),
                                  static_cast<std::size_t>(info.nbytes()));
    reads.push_back({&info, to});
    py::dict entry;
    entry[dtype_key] = to_unicode(name(info.dtype));
    entry[shape_key] = to_list(info.shape);
    entry[data_key] = data;
    PyList_SET_ITEM(list.ptr(), i++, py::make_tuple(to_unicode(info.name), entry).release().ptr());
  }
  read_without_gil(file, reads);
  return list;
}

py::object file_kind(py::handle start) {
  const BufferView bytes(start, "start");
  const std::optional<FileKind> kind = foreign_file_kind(bytes.bytes());
  if (!kind) return py::none();
  return py::make_tuple(to_str(kind->name), to_str(kind->description));
}

/// Copies each tensor to its own buffer, which is freed with the tensor.
/// Lifetime: names and shapes of the result are views of `file`'s header.
std::vector<TensorView> copy_tensors(const SafeOpen& file) {
  std::vector<TensorView> views;
  std::vector<TensorRead> reads;
  views.reserve(file.header().size());
  reads.reserve(file.header().size());
  for (const TensorInfo& info : file.header().tensors()) {
    auto buffer = std::make_shared<const Buffer>(static_cast<std::size_t>(info.nbytes()));
    const std::span<std::byte> to = buffer->bytes();
    reads.push_back({&info, to});
    views.emplace_back(info.name, info.dtype, info.shape, to, nullptr, std::move(buffer));
  }
  read_without_gil(file, reads);
  return views;
}

/// The entries of safetensors.torch._TYPES for the types that a file has. Programs change that
/// dict.
class TypeTable {
 public:
  /// Raises an error that is also KeyError for a type that is not in the dict, as upstream's
  /// look-up does.
  TypeTable(const py::dict& types, std::span<const TensorInfo> tensors) {
    for (const TensorInfo& info : tensors) {
      const auto i = static_cast<std::size_t>(info.dtype);
      if (seen_[i]) continue;
      seen_[i] = true;
      const py::object key = to_unicode(name(info.dtype));
      auto found = py::reinterpret_steal<py::object>(PyObject_GetItem(types.ptr(), key.ptr()));
      if (!found) fail_look_up(info);
      if (!torch_dtype(info.dtype, {info.name}).is(found)) unusual_[i] = std::move(found);
    }
  }

  [[nodiscard]] py::object tensor(const TensorView& view) const {
    py::object made = to_torch(view);
    const py::object& type = unusual_[static_cast<std::size_t>(view.dtype)];
    return type ? made.attr("view")(type) : made;
  }

 private:
  [[noreturn]] static void fail_look_up(const TensorInfo& info) {
    if (PyErr_ExceptionMatches(PyExc_KeyError) == 0) throw py::error_already_set();
    PyErr_Clear();
    raise_both(PyExc_KeyError,
               tensor_error(ErrorCode::kUnsupportedDtype,
                            "Dtype not understood: " + std::string(name(info.dtype)) +
                                ": torch has no such type",
                            {info.name}));
  }

  std::array<bool, kDtypeCount> seen_{};
  std::array<py::object, kDtypeCount> unusual_;
};

py::dict load_torch(py::handle data, const py::dict& types) {
  const BufferView buffer(data, "bytes");
  const SafeOpen file = open_memory(buffer);
  const TypeTable table(types, file.header().tensors());
  const std::vector<TensorView> views = copy_tensors(file);
  const GcPause pause;
  py::dict dict;
  for (const TensorView& view : views) dict[to_unicode(view.name)] = table.tensor(view);
  return dict;
}

py::dict load_numpy(py::handle data) {
  const BufferView buffer(data, "bytes");
  const SafeOpen file = open_memory(buffer);
  const std::vector<TensorView> views = copy_tensors(file);
  const GcPause pause;
  py::dict dict;
  for (const TensorView& view : views) dict[to_unicode(view.name)] = to_numpy(view);
  return dict;
}

}  // namespace

void register_bytes(py::module_& module) {
  module.add_object("_MAX_HEADER_NBYTES", to_int(kMaxHeaderSize));
  define(module, "deserialize", &deserialize, py::arg("bytes"),
         "deserialize(bytes)\n--\n\n"
         "Splits a file in memory into its tensors.\n\n"
         "bytes: the file, as bytes or any object with a contiguous buffer.\n\n"
         "Returns a list of (name, {\"dtype\": str, \"shape\": list of int, \"data\": "
         "bytearray}),\nin the order of the file. Raises SafetensorError for a damaged file.");
  define(module, "_file_kind", &file_kind, py::arg("start"),
         "_file_kind(start)\n--\n\n"
         "Returns the other format that a file's first bytes belong to: (name, description), or "
         "None.");
  define(module, "_load_torch", &load_torch, py::arg("data"), py::arg("types"),
         "_load_torch(data, types)\n--\n\n"
         "Returns the tensors of a file in memory; `types` maps the file's types to torch's.");
  define(module, "_load_numpy", &load_numpy, py::arg("data"),
         "_load_numpy(data)\n--\n\nReturns the arrays of a file in memory.");
}

}  // namespace safetensors::python
