// PySafeSlice and TensorMeta.
#include "bind_slice.hpp"

#include <memory>

#include "errors.hpp"
#include "fast_def.hpp"
#include "not_pickled.hpp"
#include "register.hpp"
#include "slice_handle.hpp"

namespace safetensors::python {
namespace {

/// PySafeSlice, written with Python's C API. Programs make one for each tensor of a file, and
/// pybind11 takes three times as long to make it.
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
PyObject* name_of(PyObject* self, void*) {
  return guarded([&] { return to_unicode(slice_of(self).info().name); });
}
PyObject* ndim_of(PyObject* self, void*) {
  return guarded([&] { return to_int(slice_of(self).info().shape.size()); });
}
PyObject* nbytes_of(PyObject* self, void*) {
  return guarded([&] { return to_int(slice_of(self).info().nbytes()); });
}
PyObject* get_shape(PyObject* self, PyObject*) { return shape_of(self, nullptr); }
PyObject* get_dtype(PyObject* self, PyObject*) { return dtype_of(self, nullptr); }

PyObject* subscript_slice(PyObject* self, PyObject* index) {
  return guarded([&] { return slice_of(self).get_item(index); });
}

/// Python's sequence protocol: unpacking, reversed(), NumPy's asarray.
PyObject* item_of_slice(PyObject* self, Py_ssize_t index) {
  return guarded([&] { return slice_of(self).get_item(py::int_(index)); });
}

Py_ssize_t length_of_slice(PyObject* self) {
  const auto length = py::reinterpret_steal<py::object>(
      guarded([&] { return to_int(slice_of(self).length("len() of")); }));
  return length ? PyLong_AsSsize_t(length.ptr()) : -1;
}

/// A slice is true, as any object without a length: programs test for None by `if part:`.
int truth_of_slice(PyObject*) { return 1; }

PyObject* rows_of_slice(PyObject* self) {
  return guarded([&] { return py::cast(std::make_unique<SliceRows>(slice_of(self))); });
}

PyObject* repr_of_slice(PyObject* self) {
  return guarded([&] {
    const TensorInfo& info = slice_of(self).info();
    return py::str("<PySafeSlice name={!r} dtype={!r} shape={!r}>")
        .format(to_unicode(info.name), to_str(info.dtype), to_list(info.shape));
  });
}

py::object html_of(const char* view, py::handle self) {
  return py::module_::import("safetensors._outline.views").attr(view)(self);
}

PyObject* slice_to_html(PyObject* self, PyObject*) {
  return guarded([&] { return html_of("of_slice", self); });
}

PyObject* reduce_slice(PyObject* self, PyObject*) {
  return guarded(
      [&] { return refuse_pickle<kFileIsOpen>(py::reinterpret_borrow<py::object>(self)); });
}

/// Returns what pickle has stored of a TensorMeta.
TensorMeta make_meta(py::handle dtype, py::handle shape, py::handle offsets) {
  const auto [begin, end] = py::cast<std::pair<std::uint64_t, std::uint64_t>>(offsets);
  return {dtype_of_code(dtype), dims_of(shape), begin, end};
}

PyMethodDef slice_methods[] = {
    {"get_shape", &get_shape, METH_NOARGS,
     "get_shape($self, /)\n--\n\nReturns the shape, a list of int."},
    {"get_dtype", &get_dtype, METH_NOARGS,
     "get_dtype($self, /)\n--\n\nReturns the type as files name it: \"F32\", \"BF16\"."},
    {"__reduce__", &reduce_slice, METH_NOARGS, nullptr},
    {"_repr_html_", &slice_to_html, METH_NOARGS, "_repr_html_($self, /)\n--\n\n"},
    {}};

PyGetSetDef slice_properties[] = {
    {"name", &name_of, nullptr, "The name of the tensor.", nullptr},
    {"shape", &shape_of, nullptr, "What get_shape() returns.", nullptr},
    {"dtype", &dtype_of, nullptr, "What get_dtype() returns.", nullptr},
    {"ndim", &ndim_of, nullptr, "The number of axes.", nullptr},
    {"nbytes", &nbytes_of, nullptr, "The bytes of the whole tensor.", nullptr},
    {}};

template <typename Value>
PyType_Slot slot(int id, Value* value) {
  return {id, reinterpret_cast<void*>(value)};
}

PyTypeObject* slice_type = nullptr;  // set once while the module is made, never freed

py::object make_slice_type() {
  PyType_Slot slots[] = {
      slot(Py_tp_dealloc, &free_slice),
      slot(Py_tp_repr, &repr_of_slice),
      slot(Py_mp_subscript, &subscript_slice),
      slot(Py_sq_item, &item_of_slice),
      slot(Py_sq_length, &length_of_slice),
      slot(Py_nb_bool, &truth_of_slice),
      slot(Py_tp_iter, &rows_of_slice),
      slot(Py_tp_methods, slice_methods),
      slot(Py_tp_getset, slice_properties),
      slot(Py_tp_doc,
           const_cast<char*>(
               "One tensor of a file, of which indexing reads parts: s[10:20], s[:, 3].\n\n"
               "safe_open.get_slice makes it. It stays valid after the file is closed.\n"
               "An index selects the elements that it would select in NumPy or torch.\n"
               "A list of slices and integers takes several ranges of one axis, end to end,\n"
               "in a new array: s[[slice(0, 4), slice(8, 12)]]. An object with a method\n"
               "part(shape) stands for the index that it returns.\n"
               "Iterating yields the rows s[0], s[1], ..., and len(s) is their number. A 0-d\n"
               "tensor raises TypeError there.\n"
               "With the pread backend, only their bytes are read, and gaps of up to\n"
               "64 KiB between them.")),
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
  Class<SliceRows>(module, "_SliceRows", "The rows of a PySafeSlice, one after the other.")
      .method_of_itself("__iter__", "__iter__(self, /)\n--\n\n")
      .method("__next__", &SliceRows::next, "__next__(self, /)\n--\n\n");
  define(module, "_make_meta", &make_meta, py::arg("dtype"), py::arg("shape"),
         py::arg("data_offsets"));
  Class<TensorMeta>(module, "TensorMeta", "The entry for one tensor in the header of a file.")
      .method("__repr__",
              [](const TensorMeta& meta) {
                return py::str("TensorMeta(dtype={!r}, shape={!r}, data_offsets={!r})")
                    .format(meta.dtype(), meta.shape(), meta.data_offsets());
              })
      .method(
          "_repr_html_",
          [](py::handle self) {
            if (!py::isinstance<TensorMeta>(self)) raise_wrong_type(self, "self", "TensorMeta");
            return html_of("of_meta", self);
          },
          "_repr_html_(self, /)\n--\n\n")
      .method("__reduce__",
              [](const TensorMeta& meta) {
                const py::module_ pickling = py::module_::import("safetensors._pickling");
                return py::make_tuple(
                    pickling.attr("tensor_meta"),
                    py::make_tuple(meta.dtype(), meta.shape(), meta.data_offsets()));
              })
      .property("dtype", &TensorMeta::dtype, "The type as files name it: \"F32\", \"BF16\".")
      .property("shape", &TensorMeta::shape, "A list of int.")
      .property("ndim", &TensorMeta::ndim, "The number of axes.")
      .property("nbytes", &TensorMeta::nbytes, "The bytes of the tensor.")
      .property("data_offsets", &TensorMeta::data_offsets,
                "(begin, end) of the bytes, relative to the start of the data.")
      .attr("__module__") = "safetensors";
}

}  // namespace safetensors::python
