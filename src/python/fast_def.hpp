// Functions and classes of a module.
//
// pybind11's own `def` looks for an overload first, and looking in vain, an exception each time,
// would be most of what an import takes. It also leaves objects to be had that no constructor made,
// and lists what it was called with where Python names the argument at fault.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "python.hpp"

namespace safetensors::python {

/// Makes a call whose arguments do not fit `function`, made by pybind11, raise Python's error.
void name_wrong_arguments(py::handle function);

/// Makes `type.__new__` run the constructor too, or raise: pybind11's methods read uninitialised
/// memory of an object without a value. Requires: no Python class derives from `type`.
void make_whole_only(py::handle type);

template <typename Function, typename... Extra>
void define(py::module_& module, const char* name, Function&& function, const Extra&... extra) {
  const py::cpp_function made(std::forward<Function>(function), py::name(name), py::scope(module),
                              extra...);
  name_wrong_arguments(made);
  module.add_object(name, made, true);
}

// pybind11 calls a member function by pointer, which is null when self is None.
template <typename Type, typename Result, typename... Args>
auto by_reference(Result (Type::*function)(Args...)) {
  return [function](Type& self, Args... args) -> Result {
    return (self.*function)(std::forward<Args>(args)...);
  };
}
template <typename Type, typename Result, typename... Args>
auto by_reference(Result (Type::*function)(Args...) const) {
  return [function](const Type& self, Args... args) -> Result {
    return (self.*function)(std::forward<Args>(args)...);
  };
}
template <typename Function>
  requires(!std::is_member_function_pointer_v<Function>)
Function by_reference(Function function) {
  return function;
}

/// See Class::quick_method. Both are set once, while the class is made, and never freed.
template <typename Type, auto Function>
struct QuickMethod {
  static inline PyObject* general = nullptr;
  static inline PyMethodDef definition{};

  static PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                        PyObject* keywords) {
    if (count == 1 && keywords == nullptr) {
      return guarded([&] { return Function(py::cast<const Type&>(py::handle(self)), args[0]); });
    }
    const Py_ssize_t all = count + (keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords));
    std::vector<PyObject*> with_self = {self};
    with_self.insert(with_self.end(), args, args + all);
    return PyObject_Vectorcall(general, with_self.data(), static_cast<std::size_t>(count) + 1,
                               keywords);
  }
};

/// py::class_ with such methods; they come first, before what else pybind11 defines.
template <typename Type, typename... Options>
class Class : public py::class_<Type, Options...> {
 public:
  using Base = py::class_<Type, Options...>;

  template <typename... Extra>
  explicit Class(py::handle scope, const char* name, const Extra&... extra)
      : Base(scope, name, py::is_final(), extra...) {
    make_whole_only(*this);
  }

  template <typename Function, typename... Extra>
  Class& method(const char* name, Function function, const Extra&... extra) {
    return add(name, by_reference(function), extra...);
  }

  /// A method of one argument, which is called often. `Function` takes (const Type&, py::handle).
  ///
  /// Given by position, the argument goes to it past pybind11, which takes four times as long. The
  /// general function remains for all other calls.
  template <auto Function>
  Class& quick_method(const char* name, const char* argument, const char* doc) {
    using Quick = QuickMethod<Type, Function>;
    Quick::general = py::object(add(name, Function, py::arg(argument)).attr(name)).release().ptr();
    Quick::definition = {name,
                         reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Quick::call)),
                         METH_FASTCALL | METH_KEYWORDS, doc};
    auto* const made_type = reinterpret_cast<PyTypeObject*>(this->ptr());
    const auto made =
        py::reinterpret_steal<py::object>(PyDescr_NewMethod(made_type, &Quick::definition));
    if (!made) throw py::error_already_set();
    this->attr(name) = made;
    return *this;
  }

  /// The method hands out the very object.
  Class& method_of_itself(const char* name, const char* doc) { return method(name, &itself, doc); }

  template <typename Function, typename... Extra>
  Class& property(const char* name, Function function, const Extra&... extra) {
    this->def_property_readonly(name, by_reference(function), extra...);
    return *this;
  }

  /// `make` returns the object's value.
  template <typename Make, typename... Extra>
  Class& constructor(Make make, const Extra&... extra) {
    this->def(py::init(make), extra...);
    name_wrong_arguments(this->attr("__init__"));
    return *this;
  }

 private:
  static py::object itself(py::object self) {
    if (!py::isinstance<Type>(self)) throw py::type_error("not of this class");
    return self;
  }

  template <typename Function, typename... Extra>
  Class& add(const char* name, Function function, const Extra&... extra) {
    const py::cpp_function made(std::move(function), py::name(name), py::is_method(*this),
                                extra...);
    name_wrong_arguments(made);
    this->attr(name) = made;
    return *this;
  }
};

}  // namespace safetensors::python
