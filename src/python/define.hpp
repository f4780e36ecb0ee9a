// Functions and classes of a module, for names that are not there yet. pybind11's `def` looks for
// an overload first, and looking in vain, an exception each time, would be most of what an import
// takes.
#pragma once

#include <utility>

#include "python.hpp"

namespace safetensors::python {

template <typename Function, typename... Extra>
void define(py::module_& module, const char* name, Function&& function, const Extra&... extra) {
  const py::cpp_function made(std::forward<Function>(function), py::name(name), py::scope(module),
                              extra...);
  module.add_object(name, made, true);
}

/// py::class_ with such methods; they come first, before what else pybind11 defines.
template <typename Type, typename... Options>
class Class : public py::class_<Type, Options...> {
 public:
  using Base = py::class_<Type, Options...>;
  using Base::Base;

  template <typename Function, typename... Extra>
  Class& method(const char* name, Function&& function, const Extra&... extra) {
    this->attr(name) = py::cpp_function(py::method_adaptor<Type>(std::forward<Function>(function)),
                                        py::name(name), py::is_method(*this), extra...);
    return *this;
  }
};

}  // namespace safetensors::python
