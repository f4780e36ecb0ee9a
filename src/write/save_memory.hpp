// Memory of saves in the background.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/staged_save.hpp"

namespace safetensors {

/// Chunks of memory that tensors are copied to before they are written. Chunks that no save uses
/// are kept for the next one, because filling new memory takes twice as long. Each process has one.
class SaveMemory {
 public:
  static constexpr std::size_t kChunkSize = std::size_t{16} << 20;

  /// Returns the memory of this process. A forked child starts with none.
  [[nodiscard]] static SaveMemory& get();

  /// Returns the default limit of the memory of all saves, in bytes.
  [[nodiscard]] std::uint64_t default_budget();
  /// Reserves up to `most` chunks within a budget, and returns how many: at least one if no save
  /// has any. Requires: the mutex.
  [[nodiscard]] std::size_t reserve(std::uint64_t budget, std::size_t most) noexcept;
  /// Gives up chunks that were reserved and not taken.
  void unreserve(std::size_t count);
  /// Moves a chunk that was reserved out of the memory. Throws: Error kOutOfMemory.
  [[nodiscard]] Buffer take();
  void give_back(Buffer chunk);
  /// Frees the chunks that no save uses. Returns how many bytes they had.
  std::size_t release();
  [[nodiscard]] SaveMemoryUse use();

  std::mutex mutex;
  std::condition_variable changed;  ///< chunks were returned, or a save went on

 private:
  std::vector<Buffer> idle_;
  std::size_t used_ = 0;  // reserved, or taken
};

}  // namespace safetensors
