#include "handle_gc.hpp"

#include "open_file.hpp"

namespace safetensors::python {
namespace {

/// Returns the value of a handle object; nullptr before it is made. Without a cast by pybind11,
/// which takes a lock: the collector may have stopped the thread that holds it.
Handle* value_of(PyObject* self) {
  auto value = reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder();
  return value.holder_constructed() ? value.value_ptr<Handle>() : nullptr;
}

}  // namespace

void collect_garbage(PyHeapTypeObject* made) {
  PyTypeObject& type = made->ht_type;
  type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
    Py_VISIT(Py_TYPE(self));
    const Handle* const handle = value_of(self);
    return handle == nullptr ? 0 : handle->traverse(visit, arg);
  };
  type.tp_finalize = [](PyObject* self) {
    if (Handle* const handle = value_of(self)) handle->close();
  };
}

}  // namespace safetensors::python
