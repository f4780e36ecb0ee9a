// Small JSON documents: configurations and shard indexes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "safetensors/weights/json.hpp"
#include "safetensors/weights/limits.hpp"

namespace safetensors::weights {

/// Whether a name may stand twice in one object.
enum class Duplicates : std::uint8_t { last_counts, refused };

/// Parses a document. `path` names it in errors.
/// Throws Error: json (not JSON, not UTF-8), limit (too deep, too many values), duplicate.
[[nodiscard]] Json parse_json(std::string_view text, const std::filesystem::path& path,
                              Duplicates duplicates, const Limits& limits);

/// Reads and parses a file. Throws also Error io and limit (size).
[[nodiscard]] Json read_json(const std::filesystem::path& path, Duplicates duplicates,
                             const Limits& limits);

}  // namespace safetensors::weights
