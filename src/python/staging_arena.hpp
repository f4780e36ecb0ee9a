// Memory of saves in the background.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "python.hpp"

namespace safetensors::python {

/// Chunks of memory that tensors are copied to before they are written. Chunks that no save uses
/// are kept for the next one, because filling new memory takes twice as long. Each process has one.
///
/// A thread that holds the mutex never waits for the GIL.
class StagingArena {
 public:
  static constexpr std::size_t kChunkSize = std::size_t{16} << 20;

  /// Returns the arena of this process.
  [[nodiscard]] static StagingArena& get();
  /// Makes a new arena for a forked process. The mutex of the old one may be locked for ever, and
  /// is leaked.
  static void renew();

  /// Returns the default limit of the memory of all saves, in bytes.
  [[nodiscard]] std::uint64_t default_budget();
  /// Returns how many chunks a save may take within a budget: at least one if no save has any.
  /// Requires: the mutex.
  [[nodiscard]] std::size_t allowed(std::uint64_t budget) const noexcept;
  /// Moves one chunk out of the arena. Throws: Error kOutOfMemory.
  [[nodiscard]] Buffer take();
  void give_back(Buffer chunk);
  /// Frees the chunks that no save uses. Returns how many bytes they had.
  std::size_t release();
  /// Returns the bytes that saves use, and those that are kept.
  [[nodiscard]] std::pair<std::size_t, std::size_t> state();

  std::mutex mutex;
  std::condition_variable changed;  ///< chunks were returned, or a save went on

 private:
  std::vector<Buffer> idle_;
  std::size_t used_ = 0;
};

}  // namespace safetensors::python
