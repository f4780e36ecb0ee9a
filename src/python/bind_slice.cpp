// PySafeSlice and TensorMeta.
#include "define.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "load_tensors.hpp"
#include "python_index.hpp"
#include "slice_handle.hpp"
#include "to_numpy.hpp"
#include "to_torch.hpp"

namespace safetensors::python {
namespace {

py::object get_item_of(const py::object& array, py::handle index) {
  auto item = py::reinterpret_steal<py::object>(PyObject_GetItem(array.ptr(), index.ptr()));
  if (!item) throw py::error_already_set();
  return item;
}

/// `array` with the marked axes turned round.
py::object reverse_axes(const py::object& array, const std::vector<bool>& reversed) {
  py::tuple index(reversed.size());
  for (std::size_t axis = 0; axis < reversed.size(); ++axis) {
    index[axis] = py::slice(py::none(), py::none(), py::int_(reversed[axis] ? -1 : 1));
  }
  return get_item_of(array, index);
}

/// NumPy hands out a scalar for an index of integers only; callers get an array, as upstream's do.
py::object index_numpy(const py::object& array, py::handle index) {
  py::object item = get_item_of(array, index);
  if (py::hasattr(item, "ctypes")) return item;  // scalars have none
  const py::object ellipsis = py::reinterpret_borrow<py::object>(Py_Ellipsis);
  const py::tuple items = py::isinstance<py::tuple>(index)
                              ? py::reinterpret_borrow<py::tuple>(index)
                              : py::make_tuple(index);
  return get_item_of(array, items + py::make_tuple(ellipsis));
}

}  // namespace

py::object SliceHandle::whole() const { return file_->to_array(file_->view(*info_)); }

/// Lets the framework index the whole tensor; from a mapping that reads no more than is taken.
py::object SliceHandle::index_whole(py::handle index) const {
  const py::object array = whole();
  if (file_->framework() == Framework::kTorch) return get_item_of(array, index);
  try {
    return index_numpy(array, index);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_IndexError)) throw;
    // With upstream's text, where the expression is one that upstream knows.
    if (const auto basic = basic_index(index, info_->shape, true)) {
      (void)resolve(basic->indices, info_->shape);
    }
    raise_both(PyExc_IndexError,
               "Error during slicing: " + py::cast<std::string>(py::str(error.value())));
  }
}

py::object SliceHandle::read_selection(const Selection& selection) const {
  const ByteRuns runs = byte_runs(selection, info_->shape, info_->dtype);
  auto buffer = std::make_shared<const Buffer>(static_cast<std::size_t>(runs.nbytes()));
  naming(file_->file().path(), [&] {
    const GilRelease release;
    file_->file().read(*info_, runs, buffer->bytes(), python_interrupt());
  });
  const std::span<std::byte> bytes = buffer->bytes();
  return file_->to_array(
      TensorView(info_->name, info_->dtype, selection.shape, bytes, nullptr, std::move(buffer)));
}

/// By the engine of the device: only the part's bytes go there. Nothing when it has none, or the
/// index is one that torch has to work out.
std::optional<py::object> SliceHandle::load_part(py::handle index) const {
  const bool is_on_device = file_->device().kind != Device::Kind::kCpu;
  if (file_->framework() != Framework::kTorch || !is_on_device || info_->dtype == Dtype::kF4) {
    return std::nullopt;
  }
  const Target target = target_of(file_->device());
  if (target.way != Way::kCuda) return std::nullopt;
  const std::optional<PythonIndex> basic = basic_index(index, info_->shape, false);
  if (!basic) return std::nullopt;
  const Selection selection = resolve(basic->indices, info_->shape);
  Request request = make_request(file_, *info_, byte_runs(selection, info_->shape, info_->dtype),
                                 selection.shape);
  load_requests({&request, 1}, target);
  return std::move(request.tensor);
}

py::object SliceHandle::get_item(py::handle index) const {
  if (std::optional<py::object> part = load_part(index)) return *std::move(part);
  // F4 elements share bytes, and every framework lays them out anew.
  if (file_->is_mapped() || info_->dtype == Dtype::kF4) {
    return file_->finish(index_whole(index), info_->dtype);
  }
  const bool may_reverse = file_->framework() != Framework::kTorch;  // torch refuses it
  const std::optional<PythonIndex> basic = basic_index(index, info_->shape, may_reverse);
  if (!basic) return file_->finish(index_whole(index), info_->dtype);
  const Selection selection = resolve(basic->indices, info_->shape);
  if (!basic->any_reversed) return file_->finish(read_selection(selection), info_->dtype);
  return file_->finish(reverse_axes(read_selection(selection), basic->reversed), info_->dtype);
}

void register_slice(py::module_& module) {
  Class<SliceHandle>(module, "PySafeSlice", py::is_final(),
                     "One tensor of a file, to take parts of: slice[10:20], slice[:, 3].\n\n"
                     "Made by safe_open.get_slice. Stays valid after the file is closed.")
      .method(
          "get_shape", [](const SliceHandle& slice) { return to_list(slice.info().shape); },
          "get_shape(self, /)\n--\n\nThe tensor's shape: a list of int.")
      .method(
          "get_dtype",
          [](const SliceHandle& slice) { return to_unicode(name(slice.info().dtype)); },
          "get_dtype(self, /)\n--\n\nThe tensor's type as the file has it: \"F32\", \"BF16\".")
      .method("__getitem__", &SliceHandle::get_item, py::arg("index"),
              "__getitem__(self, index, /)\n--\n\n"
              "The elements that NumPy's or torch's indexing would take, as a tensor.\n"
              "By the pread backend only their bytes are read (gaps up to 64 KiB with them).")
      .attr("__module__") = "safetensors";

  Class<TensorMeta>(module, "TensorMeta", py::is_final(),
                    "What a file's header says of one tensor.")
      .method("__repr__",
              [](const TensorMeta& meta) {
                return py::str("TensorMeta(dtype={!r}, shape={!r}, data_offsets={!r})")
                    .format(to_unicode(meta.dtype()), meta.shape(), meta.data_offsets());
              })
      .def_property_readonly(
          "dtype", [](const TensorMeta& meta) { return to_unicode(meta.dtype()); },
          "The type as the file has it: \"F32\", \"BF16\".")
      .def_property_readonly("shape", &TensorMeta::shape, "A list of int.")
      .def_property_readonly("data_offsets", &TensorMeta::data_offsets,
                             "(begin, end) of the bytes, counted from the start of the data.")
      .attr("__module__") = "safetensors";
}

}  // namespace safetensors::python
