// `__version__` and `__build__`: what this build is made of, for bug reports, and for programs that
// must distinguish it from other implementations.
#include "register.hpp"

namespace safetensors::python {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#elif defined(_MSC_VER)
  return "msvc " + std::to_string(_MSC_VER);
#else
  return "unknown";
#endif
}

py::dict build_info() {
  py::dict info;
  info["implementation"] = "C++";
  info["library"] = SAFETENSORS_LIBRARY_VERSION;
  info["compiler"] = compiler();
  info["standard"] = static_cast<long>(__cplusplus);
  info["pybind11"] =
      std::to_string(PYBIND11_VERSION_MAJOR) + "." + std::to_string(PYBIND11_VERSION_MINOR);
#if defined(NDEBUG)
  info["assertions"] = false;
#else
  info["assertions"] = true;
#endif
  return info;
}

}  // namespace

void register_build_info(py::module_& module) {
  module.attr("__version__") = SAFETENSORS_PYTHON_VERSION;
  module.attr("__build__") = build_info();
}

}  // namespace safetensors::python
