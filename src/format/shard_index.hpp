// Reading a large index in blocks, and learning of its files before it is read to its end.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "base/plain_json.hpp"
#include "safetensors/shard_index.hpp"

namespace safetensors {

/// Called with the name of each file that an index names, once, as soon as it is read. The name is
/// one that ShardIndex::files() can have; the rest of the index may still be refused.
using FileSeen = std::function<void(const std::string& file)>;

/// Gives `json` what is left of it and what follows in the text, if anything does. Returns false if
/// that is not UTF-8.
using RefillText = std::function<bool(PlainJson& json)>;

/// Names of tensors that are about as long are left to ShardIndex::parse().
inline constexpr std::size_t kLongestPlainEntry = 16384;

/// Reads an index of `nbytes` in the form in which programs write it; `refill` is called when less
/// than kLongestPlainEntry is left.
///
/// Returns nothing for any other form, legal or not: use ShardIndex::parse() then.
/// Throws: what ShardIndex::parse() throws, without a path; what `refill` and `seen` throw.
[[nodiscard]] std::optional<ShardIndex> read_plain_index(std::size_t nbytes,
                                                         const RefillText& refill,
                                                         const FileSeen& seen);

}  // namespace safetensors
