// PySafeSlice and TensorMeta.
#include <memory>

#include "errors.hpp"
#include "fast_def.hpp"
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
    (void)select_part(file_->file(), *info_, index, true);
    const std::string tensor(info_->name);
    raise_both(PyExc_IndexError,
               Error(ErrorCode::kInvalidArgument,
                     "Error during slicing: " + py::cast<std::string>(py::str(error.value())) +
                         ": tensor `" + tensor + "`",
                     {.path = file_->file().path(), .subject = tensor}));
  }
}

py::object SliceHandle::read_part(const Part& part) const {
  const auto& [selection, runs] = part;
  auto buffer = std::make_shared<const Buffer>(static_cast<std::size_t>(runs.nbytes()));
  {
    const GilRelease release;
    file_->file().read(*info_, runs, buffer->bytes(), python_interrupt());
  }
  const std::span<std::byte> bytes = buffer->bytes();
  return file_->to_array(
      TensorView(info_->name, info_->dtype, selection.shape, bytes, nullptr, std::move(buffer)));
}

/// By the engine of the device: only the part's bytes go there. Nothing when it has none, or the
/// index is one that torch has to work out.
std::optional<py::object> SliceHandle::load_part(py::handle index) const {
  const bool is_on_device = file_->device().kind != DeviceSpec::Kind::kCpu;
  if (file_->framework() != Framework::kTorch || !is_on_device || info_->dtype == Dtype::kF4) {
    return std::nullopt;
  }
  const LoadTarget target = load_target_of(file_->device());
  if (target.mode != TransferMode::kCuda) return std::nullopt;
  std::optional<SelectedPart> selected = select_part(file_->file(), *info_, index, false);
  if (!selected) return std::nullopt;
  auto& [selection, runs] = selected->part;
  Request request = make_request(file_, *info_, std::move(runs), selection.shape);
  load_requests({&request, 1}, target);
  return std::move(request.tensor);
}

py::object SliceHandle::get_item(py::handle index) const {
  if (std::optional<py::object> part = load_part(index)) return *std::move(part);
  // F4 elements share bytes, and every framework lays them out anew.
  if (file_->is_mapped() || info_->dtype == Dtype::kF4) {
    return file_->to_framework(index_whole(index), info_->dtype);
  }
  const bool may_reverse = file_->framework() != Framework::kTorch;  // torch refuses it
  const auto selected = select_part(file_->file(), *info_, index, may_reverse);
  if (!selected) return file_->to_framework(index_whole(index), info_->dtype);
  py::object array = read_part(selected->part);
  if (selected->any_reversed) array = reverse_axes(array, selected->reversed);
  return file_->to_framework(std::move(array), info_->dtype);
}

namespace {

/// PySafeSlice. By hand: programs make one for each tensor of a file, and pybind11 takes three
/// times as long for it.
struct SliceObject {
  PyObject_HEAD SliceHandle slice;
};

const SliceHandle& slice_of(PyObject* self) {
  return reinterpret_cast<const SliceObject*>(self)->slice;
}

void free_slice(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  std::destroy_at(&reinterpret_cast<SliceObject*>(self)->slice);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* shape_of(PyObject* self, void*) {
  return guarded([&] { return to_list(slice_of(self).info().shape); });
}
PyObject* dtype_of(PyObject* self, void*) {
  return guarded([&] { return to_str(slice_of(self).info().dtype); });
}
PyObject* get_shape(PyObject* self, PyObject*) { return shape_of(self, nullptr); }
PyObject* get_dtype(PyObject* self, PyObject*) { return dtype_of(self, nullptr); }

PyObject* get_item(PyObject* self, PyObject* index) {
  return guarded([&] { return slice_of(self).get_item(index); });
}

PyObject* describe(PyObject* self) {
  return guarded([&] {
    const TensorInfo& info = slice_of(self).info();
    return py::str("<PySafeSlice name={!r} dtype={!r} shape={!r}>")
        .format(to_unicode(info.name), to_str(info.dtype), to_list(info.shape));
  });
}

/// A slice is of this process: its file is open here.
PyObject* refuse_pickle(PyObject* self, PyObject*) {
  PyErr_Format(PyExc_TypeError, "cannot pickle '%s' object", Py_TYPE(self)->tp_name);
  return nullptr;
}

PyMethodDef slice_methods[] = {
    {"get_shape", &get_shape, METH_NOARGS,
     "get_shape($self, /)\n--\n\nThe tensor's shape: a list of int."},
    {"get_dtype", &get_dtype, METH_NOARGS,
     "get_dtype($self, /)\n--\n\nThe tensor's type as the file has it: \"F32\", \"BF16\"."},
    {"__reduce__", &refuse_pickle, METH_NOARGS, nullptr},
    {}};

PyGetSetDef slice_properties[] = {
    {"shape", &shape_of, nullptr, "What get_shape() returns.", nullptr},
    {"dtype", &dtype_of, nullptr, "What get_dtype() returns.", nullptr},
    {}};

template <typename Value>
PyType_Slot slot(int id, Value* value) {
  return {id, reinterpret_cast<void*>(value)};
}

PyTypeObject* slice_type = nullptr;  // set once while the module is made, never freed

py::object make_slice_type() {
  PyType_Slot slots[] = {
      slot(Py_tp_dealloc, &free_slice),
      slot(Py_tp_repr, &describe),
      slot(Py_mp_subscript, &get_item),
      slot(Py_tp_methods, slice_methods),
      slot(Py_tp_getset, slice_properties),
      slot(Py_tp_doc, const_cast<char*>(
                          "One tensor of a file, to take parts of: slice[10:20], slice[:, 3].\n\n"
                          "Made by safe_open.get_slice. Stays valid after the file is closed.\n"
                          "An index takes the elements that NumPy's or torch's would. By the\n"
                          "pread backend only their bytes are read (gaps up to 64 KiB with\n"
                          "them).")),
      {}};
  PyType_Spec spec = {"safetensors.PySafeSlice", sizeof(SliceObject), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  return type;
}

}  // namespace

py::object new_slice(std::shared_ptr<const OpenFile> file, std::string_view name) {
  SliceHandle slice(std::move(file), name);
  auto object = py::reinterpret_steal<py::object>(slice_type->tp_alloc(slice_type, 0));
  if (!object) throw py::error_already_set();
  std::construct_at(&reinterpret_cast<SliceObject*>(object.ptr())->slice, std::move(slice));
  return object;
}

void register_slice(py::module_& module) {
  const py::object made = make_slice_type();
  module.add_object("PySafeSlice", made);
  slice_type = reinterpret_cast<PyTypeObject*>(made.inc_ref().ptr());
  Class<TensorMeta>(module, "TensorMeta", "What a file's header says of one tensor.")
      .method("__repr__",
              [](const TensorMeta& meta) {
                return py::str("TensorMeta(dtype={!r}, shape={!r}, data_offsets={!r})")
                    .format(meta.dtype(), meta.shape(), meta.data_offsets());
              })
      .property("dtype", &TensorMeta::dtype, "The type as the file has it: \"F32\", \"BF16\".")
      .property("shape", &TensorMeta::shape, "A list of int.")
      .property("data_offsets", &TensorMeta::data_offsets,
                "(begin, end) of the bytes, counted from the start of the data.")
      .attr("__module__") = "safetensors";
}

}  // namespace safetensors::python
