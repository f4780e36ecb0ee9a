// Paths that callers type, where they may pass an open file instead.
#pragma once

#include <filesystem>
#include <string>

#include "errors.hpp"
#include "python.hpp"

namespace safetensors::python {

/// Calls `convert`. Its TypeError for a file object or a descriptor ends with `way`, which says
/// what takes one.
template <typename Convert>
std::filesystem::path no_open_file(py::handle object, const char* way, const Convert& convert) {
  try {
    return convert();
  } catch (const py::type_error& error) {
    const bool is_descriptor = PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr());
    if (!is_descriptor && !py::hasattr(object, "read") && !py::hasattr(object, "write")) throw;
    throw py::type_error(std::string(error.what()) + way);
  }
}

/// Converts the path of a file to save, as local_path_of(). Raises the errors of saving().
inline std::filesystem::path path_to_save(py::handle object, const char* argument) {
  return no_open_file(object,
                      ": safe_create(f, specs_of(tensors)) writes to file objects and descriptors, "
                      "and save(tensors) returns the bytes of a file",
                      [&] {
                        return saving(
                            {}, [&] { return local_path_of(object, argument, "saving to a URL"); });
                      });
}

/// Converts the path of a file to read, as path_of().
inline std::filesystem::path path_to_read(py::handle object, const char* argument) {
  return no_open_file(object,
                      ": load(f.read()) of the framework's module reads a file object, and a "
                      "RangeReader reads from any source",
                      [&] { return path_of(object, argument); });
}

}  // namespace safetensors::python
