// Parses small JSON documents: configurations and shard indexes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "common/files.hpp"
#include "safetensors/weights/json.hpp"
#include "safetensors/weights/limits.hpp"

namespace safetensors::weights {

/// What to do if a name occurs twice in one object.
enum class Duplicates : std::uint8_t { last_counts, refused };

/// Parses a document. `path` names it in errors.
///
/// Throws: json if it is not JSON or not UTF-8; limit if it is too deep, or its values would take
///   more than 5 times its length plus 16 MB of memory; duplicate.
/// Safe for untrusted input.
[[nodiscard]] Json parse_json(std::string_view text, const std::filesystem::path& path,
                              Duplicates duplicates, const Limits& limits);

/// Reads and parses a file.
///
/// Throws: as parse_json(); io; limit for its size.
[[nodiscard]] Json read_json(const Files& files, const std::filesystem::path& path,
                             Duplicates duplicates, const Limits& limits);

}  // namespace safetensors::weights
