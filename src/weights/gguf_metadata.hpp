// From the bytes of a GGUF header to metadata values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "safetensors/weights/limits.hpp"
#include "safetensors/weights/metadata.hpp"
#include "weights/cursor.hpp"

namespace safetensors::weights {

/// Reads a key or name: 1 to `most` bytes of UTF-8 without NUL. `what` is for error texts.
[[nodiscard]] std::string_view read_gguf_name(Cursor& cursor, std::uint64_t most,
                                              std::string_view what);

/// Reads `count` keys and their values, whose views point into the cursor's bytes.
[[nodiscard]] std::vector<ModelMetadata::Item> read_gguf_items(Cursor& cursor, std::uint64_t count,
                                                               const Limits& limits);

}  // namespace safetensors::weights
