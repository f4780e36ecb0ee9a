// Exception classes that are an error of this package and one of Python's at once.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// The subclass of OSError that Python has for an error number.
[[nodiscard]] py::object os_error_class(int os_error);

/// Sets errno, strerror and, of a path that is not empty, filename of an instance of such a class.
void add_os_error(const py::object& error, int os_error, const std::filesystem::path& path);

/// The class attributes `code`, `path` and `subject`, all None: what an error without them has.
[[nodiscard]] py::dict error_fields();

/// The class that is both `error`, named "<prefix>Error", and `base`: "<prefix>IndexError" for
/// IndexError. Without `error`, a class derived from `base`. Its str() is the text it was made
/// with. Made once for each base and prefix. pickle looks it up by that name in `module`, which has
/// to know it (`safetensors._errors`).
[[nodiscard]] py::object combined_class(py::handle error, py::handle base, std::string_view prefix,
                                        const char* module);

}  // namespace safetensors::python
