// The chunks of one load that are still to read, and the tensors that are ready.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/batch.hpp"
#include "safetensors/device.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {

/// Connects the threads that add tensors and wait for them with the readers that load them. The
/// first error of a reader stops the load; the functions that wait rethrow it.
///
/// Functions that take `poll` call it about every 50 ms while they wait, without the lock; what it
/// throws propagates. Functions that take `help` call it, without the lock, while chunks are
/// unclaimed: where no thread could be started, it reads on the calling thread.
///
/// Thread safety: all members may be called by several threads at once.
class ChunkQueue {
 public:
  /// Reads chunks for a while: until `is_enough()` is true or no chunk is left. Throws nothing.
  using Help = std::function<void(const std::function<bool()>& is_enough)>;

  ChunkQueue() = default;
  ChunkQueue(const ChunkQueue&) = delete;
  ChunkQueue& operator=(const ChunkQueue&) = delete;

  // For the threads that use the load.

  /// Appends a batch, or puts it before all unclaimed chunks. Returns its first tensor's index.
  ///
  /// Throws: Error kInvalidArgument after finish().
  Load::Index add(std::unique_ptr<Batch> batch, std::span<const LoadTensor> tensors, bool is_first);
  /// Declares that no more tensors will be added.
  void finish();
  /// Makes readers leave, and the functions that wait return, as soon as possible.
  void stop() noexcept;
  /// Blocks until finish() was called and all tensors are ready, or the load stops.
  void wait_for_all(const Interrupt& poll);
  /// Blocks until a tensor is ready. Returns false if the load was stopped before.
  ///
  /// Throws: the error that stopped the load.
  [[nodiscard]] bool wait_for(Load::Index tensor, const Interrupt& poll, const Help& help = {});
  /// Returns a ready tensor that was not returned before, in the order in which they became ready;
  /// blocks until there is one. Returns nothing after the last, or if the load was stopped.
  ///
  /// Throws: the error that stopped the load.
  [[nodiscard]] std::optional<Load::Index> next_ready(const Interrupt& poll, const Help& help = {});
  /// Throws: the error that stopped the load, if there was one.
  void rethrow_error() const;
  /// Throws: Error kInvalidArgument if no tensor with this index was added.
  void check_added(Load::Index tensor) const;
  /// Returns the number of chunks that no reader has claimed; nothing before finish().
  [[nodiscard]] std::optional<std::size_t> final_chunk_count() const;
  [[nodiscard]] bool is_stopping() const noexcept { return is_stopping_; }
  [[nodiscard]] std::uint64_t done_nbytes() const noexcept { return done_nbytes_; }
  [[nodiscard]] std::uint64_t total_nbytes() const;

  // For readers. One that was added leaves when wait_for_work() returns false, try_retire() returns
  // true, or remove_reader() is called.

  void add_reader();
  void remove_reader();
  /// Returns the next chunk, if there is one now and the load is not stopping.
  [[nodiscard]] std::optional<ChunkTask> try_claim();
  /// Blocks until there may be a chunk. Returns false if there will be none.
  [[nodiscard]] bool wait_for_work();
  /// Reports that a chunk's bytes are at their destination.
  void complete(const ChunkTask& task);
  /// Returns a chunk to the queue if another reader will claim it; returns whether that is so.
  [[nodiscard]] bool try_retire(const ChunkTask& task);
  /// Stops the load with an error. An Error that came up in a task is given its tensors' names.
  void fail_with(std::exception_ptr error, const ChunkTask* task) noexcept;

 private:
  /// Chunks [next, end) of a batch.
  struct Unclaimed {
    const Batch* batch;
    std::size_t next;
    std::size_t end;
  };

  [[nodiscard]] std::unique_lock<std::mutex> wait_until(std::condition_variable& change,
                                                        const std::function<bool()>& predicate,
                                                        const Interrupt& poll, const Help& help);
  [[nodiscard]] std::exception_ptr with_names(const std::exception_ptr& error,
                                              const ChunkTask& task) const noexcept;
  [[nodiscard]] Error with_names(const Error& error, const ChunkTask& task) const;
  void notify_all() noexcept;

  mutable std::mutex mutex_;
  std::condition_variable work_changed_;   // readers wait for chunks
  std::condition_variable ready_changed_;  // wait_for() and next_ready() wait for tensors
  std::condition_variable all_ready_;      // wait_for_all() waits for the last chunk

  std::deque<std::unique_ptr<Batch>>
      batches_;  // kept until the load is destroyed: tasks refer to them
  std::deque<Unclaimed> queue_;
  std::size_t incomplete_chunks_ = 0;
  unsigned readers_ = 0;  // those that will check the queue again
  bool is_finished_ = false;
  std::atomic<bool> is_stopping_{false};
  std::exception_ptr error_;

  std::vector<std::string_view> names_;    // of each tensor
  std::vector<std::uint32_t> parts_left_;  // of each tensor; 0: ready
  std::deque<Load::Index> ready_;          // not yet returned by next_ready()
  std::size_t returned_ = 0;               // by next_ready()
  std::atomic<std::uint64_t> done_nbytes_{0};
  std::uint64_t total_nbytes_ = 0;
};

}  // namespace safetensors::device
