// Which files this process has mapped, and a lock that keeps their mappings where they are.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace safetensors::io {

/// A counting filter of files. It knows a file by its device and number, and may take one that is
/// not mapped for one that is.
///
/// Thread safety: all functions may be called at any time, also in a forked child, which inherits
///   the mappings and their counts. They do not lock, allocate or throw.
class MappedFiles {
 public:
  using Slot = std::uint16_t;
  static constexpr std::size_t kSlots = 4096;
  /// A slot that reaches this count keeps it: its files count as mapped from then on.
  static constexpr std::uint16_t kMax = 0xFFFF;

  [[nodiscard]] static Slot slot_of(std::uint64_t device, std::uint64_t file) noexcept;
  void add(Slot slot) noexcept;
  void remove(Slot slot) noexcept;
  [[nodiscard]] bool may_contain(Slot slot) const noexcept { return counts_[slot].load() != 0; }

 private:
  std::array<std::atomic<std::uint16_t>, kSlots> counts_{};
};

/// Returns the filter with the files of all MappedFile objects.
[[nodiscard]] MappedFiles& mapped_files() noexcept;

/// Excludes other threads from replacing or removing mappings while it lives. A forked child does
/// not inherit it from a thread that it does not have.
/// Requires: the holder neither acquires the GIL nor runs code of callers, such as an Interrupt.
class MappingsLock {
 public:
  MappingsLock() noexcept;
  MappingsLock(const MappingsLock&) = delete;
  MappingsLock& operator=(const MappingsLock&) = delete;
  ~MappingsLock();

  /// Returns a number that changes with each call of changed().
  [[nodiscard]] static std::uint64_t state() noexcept;
  /// Says that a list of the process's mappings, which another thread may have, is out of date.
  static void changed() noexcept;
};

}  // namespace safetensors::io
