// The digests that an open file is compared with.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "python.hpp"

namespace safetensors::python {

/// Computes the SHA-256 of `start` and then `bytes` by hashlib, which releases the GIL meanwhile.
/// Acquires the GIL; throws an Error, also in threads that Python does not know.
[[nodiscard]] Digest sha256_by_hashlib(std::string_view start, std::span<const std::byte> bytes);

/// Returns the digests that safetensors._checking.verify found for a file, a tuple or None:
/// (size or None, digest of the header or None, {name: (digest or None, blocks or None)}, whether
/// other tensors are not compared, digest of the whole file or None). Digests are texts, blocks 8
/// little-endian bytes each.
[[nodiscard]] std::optional<FileDigests> to_digests(py::handle found);

/// Returns the digests that the arguments `verify` and `expected_hashes` of safe_open mean for a
/// file.
[[nodiscard]] std::optional<FileDigests> digests_of(py::handle verify, py::handle expected_hashes,
                                                    py::handle filename);

}  // namespace safetensors::python
