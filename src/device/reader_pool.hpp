// The reader threads of one load.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "device/chunk_queue.hpp"

namespace safetensors::device {

/// Starts readers when they are first needed, and joins them.
///
/// Thread safety: all members may be called by several threads at once.
class ReaderPool {
 public:
  /// Reads chunks until none is left. `number` identifies the reader within the load; `between` is
  /// called before each chunk. Throws nothing.
  using Read = std::function<void(unsigned number, const std::function<void()>& between)>;

  struct Options {
    unsigned threads = 0;      ///< at most; 0: by the processors
    bool is_io_bound = false;  ///< readers wait for I/O: more of them than processors may help
    unsigned requests = 0;     ///< not 0: readers wait for a server, which takes so many at once
    int numa_node = -1;        ///< where readers should run; -1: anywhere
  };

  ReaderPool(ChunkQueue& queue, Options options, Read read);
  ReaderPool(const ReaderPool&) = delete;
  ReaderPool& operator=(const ReaderPool&) = delete;

  /// Starts threads unless they were started or the load stops. Returns false if the system starts
  /// none; a later call tries again.
  bool try_start();
  /// As try_start(), but throws Error kIo if the system starts no thread.
  void ensure_threads();
  /// Divides the default number of threads by the number of loads that run at the same time.
  void share(unsigned loads);
  /// Returns whether one reader suffices for all that was added, and no thread was started.
  [[nodiscard]] bool is_small();
  /// Reads on the calling thread.
  void read_here(const std::function<void()>& between);
  /// Blocks until all threads have left.
  void join() noexcept;
  /// Returns the number of threads that were started.
  [[nodiscard]] unsigned thread_count() const noexcept { return thread_count_; }

 private:
  [[nodiscard]] unsigned readers_wanted() const;
  void start_thread(unsigned number, unsigned count);

  ChunkQueue& queue_;
  const Options options_;
  const Read read_;
  std::mutex mutex_;  // also held while threads are joined, so that every join() waits for them
  std::vector<std::thread> threads_;
  bool is_started_ = false;
  unsigned loads_at_once_ = 1;
  std::atomic<unsigned> thread_count_{0};
};

}  // namespace safetensors::device
