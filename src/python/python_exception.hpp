// Python exceptions on their way through the core, as causes of its errors.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Returns the error that Python has set on this thread as an Error: kFileChanged if the exception
/// says so by its `code`, otherwise kIo. Its text is `message`, the exception's type and the first
/// line of its text. Clears Python's error.
///
/// Requires: the GIL, and an error that is set. The Error may be copied and destroyed on any
/// thread.
[[nodiscard]] Error take_python_error(const std::string& message,
                                      const std::filesystem::path& path);

/// Returns the exception that an Error was made from; empty if there is none.
[[nodiscard]] py::object cause_of(const Error& error);

}  // namespace safetensors::python
