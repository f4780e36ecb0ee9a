// Definition of a module's functions and classes. It differs from pybind11's own `def`:
// * A call with unsuitable arguments raises the TypeError that a Python function would raise, as
//   in upstream. pybind11's own error lists its signatures and the arguments.
// * No object exists without a value: `__new__` runs the constructor.
// * A method of few arguments can bypass pybind11's dispatcher, which takes four times as long.
// * A property is a descriptor of Python's own, not a function of pybind11, each of which takes
//   20,000 instructions of an import.
// * A name is not looked up before it is defined, because nothing here is overloaded. The failed
//   look-ups raise exceptions, which took 0.15 ms of an import.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "python.hpp"

namespace safetensors::python {

/// Makes calls of `function`, which pybind11 made, with unsuitable arguments raise Python's
/// TypeError.
void name_wrong_arguments(py::handle function);

/// Makes a function of a module, which pybind11 made, pickle by its name.
void name_module(py::handle function, const py::module_& module);

/// Makes `type.__new__` run the constructor or raise. pybind11's own makes an object without a
/// value, and its methods would read uninitialised memory.
///
/// Requires: no Python class derives from `type`.
void make_whole_only(py::handle type);

/// Adds a function to the module.
template <typename Function, typename... Extra>
void define(py::module_& module, const char* name, Function&& function, const Extra&... extra) {
  const py::cpp_function made(std::forward<Function>(function), py::name(name), extra...);
  // With py::scope(module), pybind11 would first ask the module in vain for its own `__module__`.
  made.attr("__module__") = module.attr("__name__");
  name_module(made, module);
  name_wrong_arguments(made);
  module.add_object(name, made, true);
}

// Wraps a member function so that it takes a reference. pybind11 would call it through a pointer,
// which is null if self is None.
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

/// Returns how many arguments a function has besides the object.
template <typename Result, typename Self, typename... Args>
constexpr std::size_t argument_count(Result (*)(Self, Args...)) noexcept {
  return sizeof...(Args);
}

/// Returns the value of `self`, an object of `type` or of a class that derives from it. A cast by
/// pybind11 looks up the type twice, in tables that grow with every class; an object of exactly
/// this class needs neither, and always has a value (make_whole_only).
template <typename Type>
Type& value_of(PyObject* self, PyTypeObject* type) {
  if (Py_TYPE(self) != type) return py::cast<Type&>(py::handle(self));
  auto* const instance = reinterpret_cast<py::detail::instance*>(self);
  return *instance->get_value_and_holder().template value_ptr<Type>();
}

/// See Class::property. Made once, while the class is registered, and never freed.
template <typename Type, typename Function>
struct Property {
  Function function;
  PyTypeObject* type;
  PyGetSetDef definition;

  static PyObject* get(PyObject* self, void* closure) {
    const Property& its = *static_cast<Property*>(closure);
    return guarded([&]() -> py::object {
      const Type& value = value_of<Type>(self, its.type);
      using Result = std::invoke_result_t<const Function&, const Type&>;
      if constexpr (std::is_base_of_v<py::object, Result>) {
        return its.function(value);
      } else {
        return py::cast(its.function(value));
      }
    });
  }
};

/// See Class::quick_method. The members are set once, while the class is registered, and never
/// freed.
template <typename Type, auto Function>
struct QuickMethod {
  static inline PyObject* general = nullptr;
  static inline PyTypeObject* type = nullptr;
  static inline PyMethodDef definition{};

  static PyObject* call(PyObject* self, PyObject* const* args, Py_ssize_t count,
                        PyObject* keywords) {
    constexpr std::size_t kCount = argument_count(Function);
    if (count == Py_ssize_t{kCount} && keywords == nullptr) {
      return [&]<std::size_t... kAt>(std::index_sequence<kAt...>) {
        return guarded([&] { return Function(value_of<Type>(self, type), args[kAt]...); });
      }(std::make_index_sequence<kCount>());
    }
    const Py_ssize_t all = count + (keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords));
    std::vector<PyObject*> with_self = {self};
    with_self.insert(with_self.end(), args, args + all);
    return PyObject_Vectorcall(general, with_self.data(), static_cast<std::size_t>(count) + 1,
                               keywords);
  }
};

/// A py::class_ with these definitions. Call the members that return Class& before pybind11's own.
template <typename Type, typename... Options>
class Class : public py::class_<Type, Options...> {
 public:
  using Base = py::class_<Type, Options...>;

  template <typename... Extra>
  explicit Class(py::handle scope, const char* name, const Extra&... extra)
      : Base(scope, name, py::is_final(), extra...) {
    make_whole_only(*this);
  }

  /// Adds a method.
  template <typename Function, typename... Extra>
  Class& method(const char* name, Function function, const Extra&... extra) {
    return add(name, by_reference(function), extra...);
  }

  /// Adds a method that programs call often. `Function` takes (Type&, py::handle...), and
  /// `arguments` has a py::arg for each handle.
  ///
  /// A call with just these positional arguments goes directly to `Function`. All other calls go to
  /// a general function made by pybind11, which handles keywords and errors.
  template <auto Function, std::same_as<py::arg>... Args>
  Class& quick_method(const char* name, const char* doc, const Args&... arguments) {
    static_assert(sizeof...(Args) == argument_count(Function));
    using Quick = QuickMethod<Type, Function>;
    Quick::general = py::object(add(name, Function, arguments...).attr(name)).release().ptr();
    Quick::definition = {name,
                         reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&Quick::call)),
                         METH_FASTCALL | METH_KEYWORDS, doc};
    Quick::type = reinterpret_cast<PyTypeObject*>(this->ptr());
    const auto made =
        py::reinterpret_steal<py::object>(PyDescr_NewMethod(Quick::type, &Quick::definition));
    if (!made) throw py::error_already_set();
    this->attr(name) = made;
    return *this;
  }

  /// The same, for one argument.
  template <auto Function>
  Class& quick_method(const char* name, const char* argument, const char* doc) {
    return quick_method<Function>(name, doc, py::arg(argument));
  }

  /// Adds a method that returns the object itself, such as __enter__ or __iter__.
  Class& method_of_itself(const char* name, const char* doc) { return method(name, &itself, doc); }

  /// Adds a read-only property. `function` takes a const Type&.
  template <typename Function>
  Class& property(const char* name, Function function, const char* doc = nullptr) {
    auto* const its_type = reinterpret_cast<PyTypeObject*>(this->ptr());
    using Its = Property<Type, decltype(by_reference(function))>;
    auto* const its =
        new Its{by_reference(function), its_type, {name, &Its::get, nullptr, doc, nullptr}};
    its->definition.closure = its;
    const auto made =
        py::reinterpret_steal<py::object>(PyDescr_NewGetSet(its_type, &its->definition));
    if (!made) throw py::error_already_set();
    this->attr(name) = made;
    return *this;
  }

  /// Adds a constructor; `make` returns the object's value.
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
