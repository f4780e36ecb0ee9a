// The reader threads of one load.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "device/chunk_queue.hpp"

namespace safetensors::device {

/// How a reader works.
struct Turn {
  unsigned number = 0;            ///< identifies the reader within the load
  std::function<void()> between;  ///< called before each chunk
  /// If set, the reader is no thread of the pool: it leaves when this is true before a chunk, or no
  /// chunk is left, and does not count on others to claim a chunk that it returns.
  std::function<bool()> is_enough;

  [[nodiscard]] bool is_help() const noexcept { return static_cast<bool>(is_enough); }
  /// Returns whether to claim another chunk.
  [[nodiscard]] bool goes_on() const {
    if (between) between();
    return !is_enough || !is_enough();
  }
};

/// Starts readers when they are first needed, and joins them.
///
/// Thread safety: all members may be called by several threads at once.
class ReaderPool {
 public:
  /// Reads chunks until none is left, or as `turn` says. Throws nothing.
  using Read = std::function<void(const Turn& turn)>;

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
  /// Divides the default number of threads by the number of loads that run at the same time.
  void share(unsigned loads);
  /// Returns whether one reader suffices for all that was added, and no thread was started.
  [[nodiscard]] bool is_small();
  /// Reads on the calling thread until no chunk is left.
  void read_here(const std::function<void()>& between);
  /// Reads on the calling thread until `is_enough()` is true, no chunk is left, or some
  /// milliseconds have passed. No copy is in flight when it returns.
  void help(const std::function<bool()>& is_enough);
  /// Blocks until all threads have left, and no thread is in help().
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
  std::condition_variable helped_;
  unsigned helpers_ = 0;  // threads in help()
  std::vector<std::thread> threads_;
  bool is_started_ = false;
  unsigned loads_at_once_ = 1;
  std::atomic<unsigned> thread_count_{0};
};

}  // namespace safetensors::device
