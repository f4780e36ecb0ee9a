// Exception classes that derive from an error of this package and from a built-in one.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Returns Python's subclass of OSError for an error number.
[[nodiscard]] py::object os_error_class(int os_error);

/// Sets errno and strerror of an instance of such a class, and filename unless the path is empty.
void add_os_error(const py::object& error, int os_error, const std::filesystem::path& path);

/// Returns the class attributes `code`, `path` and `subject`, all None: the defaults of errors.
[[nodiscard]] py::dict error_fields();

/// Returns the class that derives from `error`, named "<prefix>Error", and `base`: it is named
/// "<prefix>IndexError" for IndexError. Without `error`, it derives from `base` alone. The str() of
/// an instance is the text that it was made with. Each base and prefix has one class. pickle looks
/// it up by its name in `module`, which must provide it (see `safetensors._errors`).
[[nodiscard]] py::object combined_class(py::handle error, py::handle base, std::string_view prefix,
                                        const char* module);

}  // namespace safetensors::python
