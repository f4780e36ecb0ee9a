// What Load and its readers share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/chunk_queue.hpp"
#include "device/context.hpp"
#include "device/reader_pool.hpp"
#include "device/sources.hpp"
#include "safetensors/device.hpp"

namespace safetensors::device {

/// The settings, the sources, the queue and the readers of one load.
///
/// Thread safety: all members may be called by several threads at once.
class LoadState {
 public:
  /// `context` is nullptr for the host.
  LoadState(Context* context, std::vector<std::shared_ptr<const ByteSource>> sources,
            const LoadOptions& options);

  [[nodiscard]] Context* context() const noexcept { return context_; }
  [[nodiscard]] const Sources& sources() const noexcept { return sources_; }
  /// Returns the settings as they were when the load was made.
  [[nodiscard]] const LoadConfig& config() const noexcept { return config_; }
  [[nodiscard]] ChunkQueue& queue() noexcept { return queue_; }
  [[nodiscard]] ReaderPool& readers() noexcept { return readers_; }

  /// Stops the queue and joins the readers.
  void stop() noexcept;
  /// Returns whether this process made the load. A forked child has a copy without its threads, and
  /// with mutexes that may be locked.
  [[nodiscard]] bool is_own() const noexcept;
  /// Call before locks are taken, and after user code, which may have forked.
  ///
  /// Throws: Error kInvalidArgument if is_own() is false.
  void check_own() const;

 private:
  /// Runs one reader until it leaves. Its errors stop the load.
  void read(const Turn& turn) noexcept;

  Context* const context_;
  const LoadConfig config_;
  const Sources sources_;
  const std::uint64_t generation_;
  ChunkQueue queue_;
  ReaderPool readers_;
};

}  // namespace safetensors::device
