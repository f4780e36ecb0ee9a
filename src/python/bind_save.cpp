// Writing: serialize, serialize_file, and the fast paths for torch and NumPy.
#include <pybind11/numpy.h>

#include <utility>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "register.hpp"
#include "safetensors/detail/serializing.hpp"
#include "save_arguments.hpp"
#include "save_target.hpp"
#include "tensor_spec.hpp"
#include "to_numpy.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

py::bytes to_bytes(std::span<const TensorData> tensors, const std::optional<Metadata>& metadata) {
  const LayoutPlan plan =
      detail::serializing([&] { return plan_layout(tensors, metadata ? &*metadata : nullptr); });
  auto bytes = py::reinterpret_steal<py::bytes>(
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(plan.total_nbytes)));
  if (!bytes) throw py::error_already_set();
  const std::span<std::byte> to(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.ptr())),
                                static_cast<std::size_t>(plan.total_nbytes));
  const GilRelease release;
  serialize_to(plan, tensors, to, python_interrupt());
  return bytes;
}

/// Saves a file, with its sums if they are wanted.
void to_file(std::span<const TensorData> tensors, py::handle filename, SaveArguments arguments) {
  const SaveTarget target(filename, "filename");
  const SaveOptions options = arguments.save_options();
  saving(target.path(), [&] {
    const GilRelease release;
    const Metadata* const metadata = arguments.metadata_or_null();
    detail::WriteSums& sums = *arguments.sums;
    if (target.is_path()) {
      detail::save_file(tensors, target.path(), metadata, options, sums);
      return;
    }
    detail::serializing([&] {
      LayoutPlan plan = plan_layout(tensors, metadata);
      detail::write_file(std::move(plan), tensors,
                         target.make_sink(options.interrupt, sums.before_rename(target.path())),
                         options, sums);
    });
  });
}

/// The tensors that the core is to write, and the owners of what `data` points to.
struct Collected {
  std::vector<TensorData> data;
  std::vector<std::vector<std::uint64_t>> shapes;
  py::dict tensors;  // a copy: other threads may remove tensors from the caller's dict
  std::vector<py::object> prepared;
};

Collected collect_specs(py::handle tensors) {
  if (!PyDict_Check(tensors.ptr())) raise_wrong_type(tensors, "tensor_dict", "dict");
  Collected result;
  result.tensors = copy_of(tensors);
  for (const auto& [key, value] : result.tensors) {
    const std::string_view tensor_name = text_of_key(key, "tensor_dict");
    if (!py::isinstance<TensorSpec>(value)) raise_wrong_type(value, "tensor_dict", "TensorSpec");
    result.data.push_back(py::cast<const TensorSpec&>(value).data(tensor_name));
  }
  return result;
}

/// Returns whether an array of a class that Python code derived from ndarray has a mask.
bool has_mask(const py::object& array) {
  return PyType_HasFeature(Py_TYPE(array.ptr()), Py_TPFLAGS_HEAPTYPE) && py::hasattr(array, "mask");
}

/// Collects arrays. Those in the layout of files are used directly; for the others `prepare` is
/// called with the name and the array; it returns (array of bytes, name of the type, shape). It
/// is called for arrays with a mask, too, because files keep none.
Collected collect_numpy(const py::dict& arrays, const py::object& prepare) {
  Collected result;
  result.tensors = copy_of(arrays);
  result.data.reserve(result.tensors.size());
  result.shapes.reserve(result.tensors.size());
  for (const auto& [key, value] : result.tensors) {
    const std::string_view tensor_name = text_of_key(key, "tensor_dict");
    py::object array = py::reinterpret_borrow<py::object>(value);
    std::optional<Dtype> dtype;
    if (py::isinstance<py::array>(array) &&
        (py::reinterpret_borrow<py::array>(array).flags() & py::array::c_style) != 0 &&
        !has_mask(array)) {
      dtype = dtype_of_array(array);
    }
    std::vector<std::uint64_t>& shape = result.shapes.emplace_back();
    if (dtype) {
      const auto plain = py::reinterpret_borrow<py::array>(array);
      shape.assign(plain.shape(), plain.shape() + plain.ndim());
    } else {
      const py::tuple prepared = prepare(key, array);
      array = prepared[0];
      dtype = parse_dtype(py::cast<std::string_view>(prepared[1]));
      for (const py::handle dim : prepared[2]) shape.push_back(py::cast<std::uint64_t>(dim));
    }
    const auto stored = py::reinterpret_borrow<py::array>(array);
    result.data.push_back({.name = tensor_name,
                           .shape = shape,
                           .bytes = {static_cast<const std::byte*>(stored.data()),
                                     static_cast<std::size_t>(stored.nbytes())},
                           .dtype = dtype.value()});
    if (array.ptr() != value.ptr()) result.prepared.push_back(std::move(array));
  }
  return result;
}

py::bytes serialize_specs(py::handle tensors, py::handle metadata) {
  const Collected collected = collect_specs(tensors);
  return to_bytes(collected.data, metadata_of(metadata));
}

void save_specs_file(py::handle tensors, py::handle filename, py::handle options) {
  const Collected collected = collect_specs(tensors);
  to_file(collected.data, filename, SaveArguments(options));
}

void serialize_specs_file(py::handle tensors, py::handle filename, py::handle metadata, bool fsync,
                          py::object progress) {
  const Collected collected = collect_specs(tensors);
  to_file(collected.data, filename, SaveArguments(metadata, fsync, std::move(progress)));
}

void write_bytes_file(py::handle path, py::handle data, bool fsync) {
  const std::filesystem::path target = local_path_of(path, "path", "saving to a URL");
  const BufferView view(data, "data");
  saving(target, [&] {
    const GilRelease release;
    detail::serializing([&] { detail::write_all(*make_file_sink(target), view.bytes(), fsync); });
  });
}

py::object save_torch(const py::dict& tensors, py::handle metadata) {
  const std::optional<TorchTensors> collected = collect_torch(tensors);
  if (!collected) return py::none();
  return to_bytes(collected->data, metadata_of(metadata));
}

bool save_torch_file(const py::dict& tensors, py::handle filename, py::handle options) {
  const std::optional<TorchTensors> collected = collect_torch(tensors);
  if (!collected) return false;
  to_file(collected->data, filename, SaveArguments(options));
  return true;
}

py::bytes save_numpy(const py::dict& arrays, const py::object& prepare, py::handle metadata) {
  const Collected collected = collect_numpy(arrays, prepare);
  return to_bytes(collected.data, metadata_of(metadata));
}

void save_numpy_file(const py::dict& arrays, const py::object& prepare, py::handle filename,
                     py::handle options) {
  const Collected collected = collect_numpy(arrays, prepare);
  to_file(collected.data, filename, SaveArguments(options));
}

}  // namespace

void register_save(py::module_& module) {
  define(module, "serialize", &serialize_specs, py::arg("tensor_dict"),
         py::arg("metadata") = py::none(),
         "serialize(tensor_dict, metadata=None)\n--\n\n"
         "Returns the tensors as a file in memory.\n\n"
         "tensor_dict: a dict of name to TensorSpec.\n"
         "metadata: a dict of str to str, written in sorted order, or None.\n\n"
         "Raises SafetensorError if a tensor's size does not match its shape and type.");
  define(
      module, "serialize_file", &serialize_specs_file, py::arg("tensor_dict"), py::arg("filename"),
      py::arg("metadata") = py::none(), py::kw_only(), py::arg("fsync") = false,
      py::arg("progress") = py::none(),
      "serialize_file(tensor_dict, filename, metadata=None, *, fsync=False, progress=None)\n"
      "--\n\n"
      "Like serialize, but writes to a file. The file is replaced completely or not at all.\n\n"
      "filename: str, bytes or os.PathLike.\n"
      "fsync: whether to wait until the file is on the disk.\n"
      "progress: called as progress(done, total) with the bytes written so far and those of the\n"
      "whole file. In the last call both are equal. If it raises, nothing is saved.\n\n"
      "Raises an error that is both SafetensorError and OSError if the file cannot be written.");
  define(module, "_save_torch", &save_torch, py::arg("tensors"), py::arg("metadata"),
         "_save_torch(tensors, metadata)\n--\n\n"
         "Returns a file in memory; None if a tensor needs preparation.");
  define(module, "_save_torch_file", &save_torch_file, py::arg("tensors"), py::arg("filename"),
         py::arg("options"),
         "_save_torch_file(tensors, filename, options)\n--\n\n"
         "Writes a file and returns True; returns False if a tensor needs preparation.");
  define(module, "_save_numpy", &save_numpy, py::arg("arrays"), py::arg("prepare"),
         py::arg("metadata"), "_save_numpy(arrays, prepare, metadata)\n--\n\nA file in memory.");
  define(module, "_save_numpy_file", &save_numpy_file, py::arg("arrays"), py::arg("prepare"),
         py::arg("filename"), py::arg("options"),
         "_save_numpy_file(arrays, prepare, filename, options)\n--\n\nWrites a file.");
  define(module, "_save_specs_file", &save_specs_file, py::arg("tensor_dict"), py::arg("filename"),
         py::arg("options"),
         "_save_specs_file(tensor_dict, filename, options)\n--\n\n"
         "Writes a file, as serialize_file.");
  define(module, "_write_file", &write_bytes_file, py::arg("path"), py::arg("data"),
         py::arg("fsync"),
         "_write_file(path, data, fsync)\n--\n\n"
         "Writes bytes to a file, which is replaced completely or not at all.");
  define(module, "_use_torch_exchange", &use_torch_exchange, py::arg("use"),
         "_use_torch_exchange(use)\n--\n\n"
         "For tests. Sets whether torch's C exchange functions are used if torch has them.");
}

}  // namespace safetensors::python
