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
