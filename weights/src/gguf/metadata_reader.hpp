// Reads the metadata items of a GGUF header.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/cursor.hpp"
#include "safetensors/weights/limits.hpp"
#include "safetensors/weights/metadata.hpp"

namespace safetensors::weights {

/// Reads a key or name: 1 to `max_nbytes` bytes of UTF-8 without NUL. `what` is for error messages.
[[nodiscard]] std::string_view read_gguf_name(Cursor& cursor, std::uint64_t max_nbytes,
                                              std::string_view what);

/// Reads `count` items. Keys and values are views of the cursor's bytes.
[[nodiscard]] std::vector<ModelMetadata::Item> read_gguf_items(Cursor& cursor, std::uint64_t count,
                                                               const Limits& limits);

}  // namespace safetensors::weights
