// The numbers of a record: its head, and a row for each block (docs/patches.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/little_endian.hpp"

namespace safetensors::patch {

inline constexpr std::size_t kHeadSize = 96;
inline constexpr std::size_t kRowSize = 16;
inline constexpr std::size_t kMaxDims = 64;
inline constexpr std::size_t kMaxPositionBytes = 8192;
inline constexpr std::size_t kDigestSize = 32;

// Where the fields of the head are.
inline constexpr std::size_t kCheckAt = 0;
inline constexpr std::size_t kKindAt = 8;
inline constexpr std::size_t kUnitAt = 9;
inline constexpr std::size_t kFlagsAt = 10;
inline constexpr std::size_t kZeroAt = 11;
inline constexpr std::size_t kDimsAt = 12;
inline constexpr std::size_t kUnitsAt = 16;
inline constexpr std::size_t kRowsAt = 24;
inline constexpr std::size_t kBaseAt = 32;
inline constexpr std::size_t kTargetAt = 64;

inline constexpr std::uint8_t kHasBase = 1;
inline constexpr std::uint8_t kSubByte = 2;

enum class PositionCode : std::uint8_t { kSame, kGap8, kPos16, kBitmap, kRuns };
enum class ValueCode : std::uint8_t { kSet, kAdd8 };

struct Row {
  PositionCode positions = PositionCode::kSame;
  ValueCode values = ValueCode::kSet;
  std::uint16_t position_bytes = 0;
  std::uint16_t last = 0;  ///< one less than the units that change
  std::uint16_t wide = 0;
  std::uint64_t check = 0;

  [[nodiscard]] std::size_t count() const noexcept { return last + std::size_t{1}; }
  /// Returns how many signed bytes follow the positions.
  [[nodiscard]] std::size_t narrow() const noexcept {
    return values == ValueCode::kAdd8 ? count() : 0;
  }
  /// Returns how many units the values have.
  [[nodiscard]] std::size_t stored() const noexcept {
    return values == ValueCode::kAdd8 ? wide : count();
  }

  friend bool operator==(const Row&, const Row&) = default;
};

[[nodiscard]] inline Row load_row(const std::byte* from) noexcept {
  return {static_cast<PositionCode>(from[0]),   static_cast<ValueCode>(from[1]),
          load_little<std::uint16_t>(from + 2), load_little<std::uint16_t>(from + 4),
          load_little<std::uint16_t>(from + 6), load_little<std::uint64_t>(from + 8)};
}

inline void store_row(std::byte* to, const Row& row) noexcept {
  to[0] = static_cast<std::byte>(row.positions);
  to[1] = static_cast<std::byte>(row.values);
  store_little(to + 2, row.position_bytes);
  store_little(to + 4, row.last);
  store_little(to + 6, row.wide);
  store_little(to + 8, row.check);
}

}  // namespace safetensors::patch
