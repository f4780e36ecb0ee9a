// The inner loops of patches: one build for each instruction set, chosen at run time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace safetensors::patch {

inline constexpr std::size_t kBlockUnits = 65536;
/// Entries of a list of positions: some kernels write a few more than they have found.
inline constexpr std::size_t kPositionRoom = kBlockUnits + 8;

/// The loops over units of one size. All builds give the same bytes. Units are little-endian, at
/// any address; a block has at most kBlockUnits of them.
struct UnitKernels {
  /// Sets bit i of the words `differs` if the units i differ, and clears the bits behind the last.
  /// Returns how many are set.
  std::size_t (*compare)(const std::byte* a, const std::byte* b, std::size_t count,
                         std::uint64_t* differs) noexcept;
  /// Copies the units at these positions to an array.
  void (*gather)(const std::byte* block, const std::uint16_t* at, std::size_t count,
                 std::byte* to) noexcept;
  /// Copies an array to the units at these positions.
  void (*scatter)(std::byte* block, const std::uint16_t* at, std::size_t count,
                  const std::byte* from) noexcept;
  /// Writes the differences as signed bytes, and -128 for those that do not fit. Overwrites `old`
  /// with the new units of the latter and returns how many there are.
  std::size_t (*subtract)(std::byte* old, const std::byte* now, std::size_t count,
                          std::byte* steps) noexcept;
  /// Makes new units of old ones. Returns how many steps are -128: for these, the new unit is the
  /// next one of `wide`, of which no more than `wide_count` are read.
  std::size_t (*add)(std::byte* units, const std::byte* steps, std::size_t count,
                     const std::byte* wide, std::size_t wide_count) noexcept;
};

struct Kernels {
  const char* name;
  std::array<UnitKernels, 4> by_log2_unit;
  /// Writes the numbers of the bits that are set, ascending, and returns how many. Writes no more
  /// than three entries behind them.
  std::size_t (*list_bits)(const std::uint64_t* words, std::size_t count,
                           std::uint16_t* at) noexcept;
  /// XXH3-64 with seed 0.
  std::uint64_t (*xxh3_64)(const std::byte* bytes, std::size_t size) noexcept;

  /// `unit` is 1, 2, 4 or 8.
  [[nodiscard]] const UnitKernels& of_unit(std::size_t unit) const noexcept {
    return by_log2_unit[unit == 8 ? 3 : unit >> 1];
  }
};

/// Returns the builds that this machine can run, the fastest last.
[[nodiscard]] std::span<const Kernels* const> usable_kernels() noexcept;

/// Returns the fastest build that this machine can run.
[[nodiscard]] inline const Kernels& best_kernels() noexcept { return *usable_kernels().back(); }

// Defined by kernels_*.cpp. kAvx2Kernels exists on x86 only. Use no build that usable_kernels()
// does not list.
extern const Kernels kBaselineKernels;
extern const Kernels kAvx2Kernels;

}  // namespace safetensors::patch
