// Opening what a user names: a path, a URL or a RangeReader.
#pragma once

#include <optional>

#include "python.hpp"

namespace safetensors::python {

/// Opens a file by its path (str, bytes, os.PathLike), its URL (a str with "://") or a RangeReader.
/// `options` are those of a path; `storage_options`, a mapping or None, those of a URL. With
/// `digests`, nothing is mapped, and what is read is compared.
///
/// Requires: the GIL, which it releases.
/// Raises TypeError for other objects, and for storage_options without a URL.
[[nodiscard]] SafeOpen open_any(py::handle file, const OpenOptions& options,
                                py::handle storage_options,
                                const std::optional<FileDigests>& digests = std::nullopt);

}  // namespace safetensors::python
