// Opening what a user names: a path, a URL or a RangeReader.
#pragma once

#include "python.hpp"

namespace safetensors::python {

/// Opens a file by its path (str, bytes, os.PathLike), its URL (a str with "://") or a RangeReader.
/// `options` are those of a path; `storage_options`, a mapping or None, those of a URL.
///
/// Requires: the GIL, which it releases.
/// Raises TypeError for other objects, and for storage_options without a URL.
[[nodiscard]] SafeOpen open_any(py::handle file, const OpenOptions& options,
                                py::handle storage_options);

}  // namespace safetensors::python
