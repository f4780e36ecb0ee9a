#include "fast_def.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

namespace safetensors::python {
namespace {

using Record = py::detail::function_record;
using Call = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

std::atomic<Call> pybind_call;  // the dispatcher of all functions that pybind11 makes

/// Returns the last part of a type's name.
std::string_view short_name(py::handle type) {
  const std::string_view name = reinterpret_cast<PyTypeObject*>(type.ptr())->tp_name;
  return name.substr(name.rfind('.') + 1);
}

/// Returns "safe_open.get_tensor()"; a constructor is called __new__, as in upstream's errors.
std::string call_name(const Record& record) {
  if (!record.is_method) return std::string(record.name) + "()";
  const char* const name = record.is_constructor ? "__new__" : record.name;
  return std::string(short_name(record.scope)) + "." + name + "()";
}

/// Returns the names as "'a', 'b', and 'c'".
std::string list_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i != 0) text += names.size() > 2 ? ", " : " ";
    if (i != 0 && i + 1 == names.size()) text += "and ";
    text += "'" + names[i] + "'";
  }
  return text;
}

/// The arguments of a call and the parameters of the function, both without self.
class Arguments {
 public:
  Arguments(const Record& record, Py_ssize_t count, PyObject* keywords)
      : self_(record.is_method ? 1 : 0),
        params_(record.args.begin() + (record.is_method && !record.args.empty() ? 1 : 0),
                record.args.end()),
        positional_(record.nargs_pos - self_),
        count_(static_cast<std::size_t>(count) - self_),
        keywords_(keywords == nullptr ? py::tuple() : py::reinterpret_borrow<py::tuple>(keywords)) {
  }

  /// Returns why the call is invalid, in upstream's words; empty if it is valid.
  [[nodiscard]] std::string misfit() const {
    if (count_ > positional_) return too_many();
    for (const py::handle keyword : keywords_) {
      const auto name = py::cast<std::string>(keyword);
      const std::size_t at = index_of(name);
      if (params_.empty()) return "takes no keyword arguments";
      if (at == params_.size()) return "got an unexpected keyword argument '" + name + "'";
      if (at < count_) return "got multiple values for argument '" + name + "'";
    }
    std::string text = missing("positional", count_, positional_);
    return text.empty() ? missing("keyword", positional_, params_.size()) : text;
  }

 private:
  [[nodiscard]] std::string too_many() const {
    if (params_.empty()) return "takes no arguments (" + std::to_string(count_) + " given)";
    std::size_t required = 0;
    while (required < positional_ && !params_[required].value) ++required;
    std::string range = std::to_string(positional_);
    if (required < positional_) range = "from " + std::to_string(required) + " to " + range;
    return "takes " + range + " positional arguments but " + std::to_string(count_) + " were given";
  }

  [[nodiscard]] std::string missing(const char* kind, std::size_t begin, std::size_t end) const {
    std::vector<std::string> names;
    for (std::size_t i = begin; i < std::min(end, params_.size()); ++i) {
      const char* const name = params_[i].name;
      if (!params_[i].value && !keywords_.contains(name)) names.emplace_back(name);
    }
    if (names.empty()) return {};
    return "missing " + std::to_string(names.size()) + " required " + kind + " argument" +
           (names.size() == 1 ? ": " : "s: ") + list_names(names);
  }

  [[nodiscard]] std::size_t index_of(std::string_view name) const {
    std::size_t i = 0;
    while (i < params_.size() && params_[i].name != name) ++i;
    return i;
  }

  std::size_t self_;
  std::vector<py::detail::argument_record> params_;
  std::size_t positional_;
  std::size_t count_;
  py::tuple keywords_;
};

/// Returns why pybind11 refused the call; empty if the number and names of arguments were right.
std::string misfit(const Record& record, PyObject* const* args, Py_ssize_t count,
                   PyObject* keywords) {
  const std::string name = call_name(record);
  if (record.is_method && count == 0) return "unbound method " + name + " needs an argument";
  if (record.is_method && PyObject_IsInstance(args[0], record.scope.ptr()) == 0) {
    return std::string("descriptor '") + record.name + "' for '" +
           std::string(short_name(record.scope)) + "' objects doesn't apply to a '" +
           type_name(args[0]) + "' object";
  }
  const std::string text = Arguments(record, count, keywords).misfit();
  return text.empty() ? text : name + " " + text;
}

PyObject* call(PyObject* record, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  PyObject* const result =
      pybind_call.load(std::memory_order_relaxed)(record, args, count, keywords);
  if (result != nullptr || PyErr_ExceptionMatches(PyExc_TypeError) == 0) return result;
  std::string text;
  try {
    const py::error_scope as_it_is;
    const Record* const known = py::detail::function_record_ptr_from_PyObject(record);
    if (known != nullptr) text = misfit(*known, args, count, keywords);
  } catch (...) {
    return nullptr;  // pybind11's error stays set
  }
  if (!text.empty()) PyErr_SetString(PyExc_TypeError, text.c_str());
  return nullptr;
}

PyObject* make_object(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  const auto self = py::reinterpret_steal<py::object>(py::detail::make_new_instance(type));
  if (type->tp_init(self.ptr(), args, keywords) != 0) return nullptr;
  return py::object(self).release().ptr();
}

/// Implements `cls.__new__(cls, ...)`.
PyObject* call_new(PyObject* self, PyObject* args, PyObject* keywords) {
  auto* const type = reinterpret_cast<PyTypeObject*>(self);
  const Py_ssize_t count = PyTuple_GET_SIZE(args);
  if (count == 0 || PyTuple_GET_ITEM(args, 0) != self) {
    PyErr_Format(PyExc_TypeError, "%s.__new__() needs its class as the first argument",
                 type->tp_name);
    return nullptr;
  }
  const auto others = py::reinterpret_steal<py::object>(PyTuple_GetSlice(args, 1, count));
  return others ? type->tp_new(type, others.ptr(), keywords) : nullptr;
}

}  // namespace

void name_wrong_arguments(py::handle function) {
  PyMethodDef* const made =
      reinterpret_cast<PyCFunctionObject*>(py::detail::get_function(function).ptr())->m_ml;
  if (made->ml_meth == reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call))) return;
  pybind_call = reinterpret_cast<Call>(reinterpret_cast<void (*)()>(made->ml_meth));
  made->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call));
}

void name_module(py::handle function, const py::module_& module) {
  PyObject* const record = PyCFunction_GET_SELF(py::detail::get_function(function).ptr());
  py::detail::function_record_ptr_from_PyObject(record)->scope = module;
}

void make_whole_only(py::handle type) {
  static PyMethodDef definition = {
      "__new__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_new)),
      METH_VARARGS | METH_KEYWORDS, nullptr};
  auto* const made = reinterpret_cast<PyTypeObject*>(type.ptr());
  // This attribute would also give access to an object without a value.
  py::delattr(type, "_pybind11_conduit_v1_");
  const auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&definition, type.ptr()));
  // Bypasses type.__setattr__, which would set a slot that looks up the function at each call.
  if (!function || PyDict_SetItemString(made->tp_dict, "__new__", function.ptr()) != 0) {
    throw py::error_already_set();
  }
  made->tp_new = &make_object;
  PyType_Modified(made);
}

}  // namespace safetensors::python
