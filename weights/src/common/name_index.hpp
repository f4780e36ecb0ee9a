// A hash table over the names of a file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/name_hash.hpp"

namespace safetensors::weights {

/// Finds names in a list that is stored elsewhere: `name_of(i)` returns its name i, the same at
/// every call. The hash has a secret seed, so that no file can be made to collide.
///
/// Open addressing with linear probing; a slot is 64 bits:
///
///     bits 63-32                 31-0
///     upper bits of the hash     index + 1, or 0 in a free slot
class NameIndex {
 public:
  /// Indexes the names 0 to count - 1. If two are equal, returns the index of the second and that
  /// of the first, which find() returns.
  template <typename NameOf>
  std::optional<std::pair<std::size_t, std::size_t>> build(std::size_t count,
                                                           const NameOf& name_of) {
    std::optional<std::pair<std::size_t, std::size_t>> twice;
    seed_ = secret_seed();
    slots_.assign(std::bit_ceil(count + count / 3 + 1), 0);
    for (std::size_t i = 0; i < count; ++i) {
      const std::string_view name = name_of(i);
      const std::uint64_t hash = hash_name(name, seed_);
      const std::size_t at = place_of(name, hash, name_of);
      if (slots_[at] == 0) {
        slots_[at] = tag_of(hash) | (i + 1);
      } else if (!twice) {
        twice = {i, index_of(slots_[at])};
      }
    }
    return twice;
  }

  /// Returns the index of `name`, or nothing.
  template <typename NameOf>
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name,
                                                const NameOf& name_of) const noexcept {
    if (slots_.empty()) return std::nullopt;
    const std::size_t at = place_of(name, hash_name(name, seed_), name_of);
    if (slots_[at] == 0) return std::nullopt;
    return index_of(slots_[at]);
  }

 private:
  // Names whose upper bits of the hash differ need no comparison.
  static constexpr std::uint64_t kIndexMask = (std::uint64_t{1} << 32) - 1;

  static std::uint64_t tag_of(std::uint64_t hash) noexcept { return hash & ~kIndexMask; }
  static std::size_t index_of(std::uint64_t slot) noexcept {
    return static_cast<std::size_t>((slot & kIndexMask) - 1);
  }

  /// Returns the slot of `name`, or the free slot where it belongs. At least a quarter of the slots
  /// is free, so the search ends.
  template <typename NameOf>
  [[nodiscard]] std::size_t place_of(std::string_view name, std::uint64_t hash,
                                     const NameOf& name_of) const noexcept {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = static_cast<std::size_t>(hash) & mask;
    while (slots_[at] != 0) {
      if (tag_of(slots_[at]) == tag_of(hash) && name_of(index_of(slots_[at])) == name) break;
      at = (at + 1) & mask;
    }
    return at;
  }

  std::vector<std::uint64_t> slots_;
  std::uint64_t seed_ = 0;
};

}  // namespace safetensors::weights
