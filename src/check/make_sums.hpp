// Computes the sums of a file.
#pragma once

#include <string>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/sums.hpp"

namespace safetensors {

/// As the public make_sums(), but does not read the tensors whose digests are known.
[[nodiscard]] Sums make_sums(const ByteSource& file, std::string path, const Interrupt& interrupt,
                             std::span<const detail::WriteSums::Written> written);

}  // namespace safetensors
