// What this build is made of, for bug reports and for telling it from other implementations.
#include "python.hpp"

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

}  // namespace

py::dict build_info() {
  py::dict info;
  info["implementation"] = "C++";
  info["library"] = SAFETENSORS_LIBRARY_VERSION;
  info["compiler"] = compiler();
  info["standard"] = static_cast<long>(__cplusplus);
  info["pybind11"] =
      std::to_string(PYBIND11_VERSION_MAJOR) + "." + std::to_string(PYBIND11_VERSION_MINOR);
  info["backends"] = py::make_tuple("mmap", "pread");
#if defined(NDEBUG)
  info["assertions"] = false;
#else
  info["assertions"] = true;
#endif
  return info;
}

}  // namespace safetensors::python
