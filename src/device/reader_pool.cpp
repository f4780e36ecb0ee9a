#include "device/reader_pool.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

#include "base/per_process.hpp"
#include "io/system.hpp"

namespace safetensors::device {
namespace {

// More readers that copy from the page cache compete for memory bandwidth and processor caches.
constexpr unsigned kMaxReaders = 12;
// Readers that wait for I/O: enough for the queue of a disk, also on a machine with few processors.
constexpr unsigned kMinIoBoundReaders = 8;
constexpr unsigned kMaxIoBoundReaders = 16;
// Readers are only bound to a NUMA node that has this many processors, or one for each.
constexpr unsigned kMinProcessorsOnNode = 4;
constexpr unsigned kMaxThreadsOfAllLoads = 32;  // of the process
// So that a caller that reads itself sees Ctrl-C soon.
constexpr std::chrono::milliseconds kHelpFor{50};

struct ThreadBudget {
  std::mutex mutex;
  unsigned used = 0;
};

constinit PerProcess<ThreadBudget> budget;  // a forked process has none of its parent's threads

/// Reserves up to `wanted` of the threads that are left, and at least one, so that no load waits
/// for another. Returns how many; pass that to release_threads().
unsigned acquire_threads(unsigned wanted) {
  ThreadBudget& threads = budget.get();
  const std::lock_guard lock(threads.mutex);
  const unsigned left = kMaxThreadsOfAllLoads - std::min(kMaxThreadsOfAllLoads, threads.used);
  const unsigned count = std::max(1U, std::min(wanted, left));
  threads.used += count;
  return count;
}

void release_threads(unsigned count) {
  ThreadBudget& threads = budget.get();
  const std::lock_guard lock(threads.mutex);
  threads.used -= std::min(threads.used, count);
}

}  // namespace

ReaderPool::ReaderPool(ChunkQueue& queue, Options options, Read read)
    : queue_(queue), options_(options), read_(std::move(read)) {}

unsigned ReaderPool::readers_wanted() const {
  unsigned wanted = options_.threads;
  if (options_.requests != 0) {
    wanted = options_.requests;
  } else if (wanted == 0) {
    const unsigned processors = io::processor_count();
    wanted = options_.is_io_bound ? std::clamp(processors, kMinIoBoundReaders, kMaxIoBoundReaders)
                                  : std::min(processors, kMaxReaders);
    wanted = (wanted + loads_at_once_ - 1) / loads_at_once_;
  }
  const std::optional<std::size_t> chunks = queue_.final_chunk_count();
  if (!chunks) return wanted;  // more tensors may be added
  return static_cast<unsigned>(std::clamp<std::size_t>(*chunks, 1, wanted));
}

void ReaderPool::start_thread(unsigned number, unsigned count) {
  queue_.add_reader();
  try {
    threads_.emplace_back([this, number, count] {
      // Staging memory that the thread touches first is then near the device.
      (void)io::stay_on_node(options_.numa_node, std::min(kMinProcessorsOnNode, count));
      read_({.number = number, .between = {}, .is_enough = {}});
      release_threads(1);
    });
  } catch (...) {
    queue_.remove_reader();
    throw;
  }
  ++thread_count_;
}

bool ReaderPool::try_start() {
  const std::lock_guard lock(mutex_);
  if (is_started_ || queue_.is_stopping()) return true;
  const unsigned count = acquire_threads(readers_wanted());
  unsigned started = 0;
  try {
    threads_.reserve(count);
    for (; started < count; ++started) start_thread(started, count);
  } catch (...) {  // with fewer threads than wanted the load is slower, but complete
    release_threads(count - started);
  }
  is_started_ = started != 0;
  return is_started_;
}

void ReaderPool::share(unsigned loads) {
  const std::lock_guard lock(mutex_);
  loads_at_once_ = loads;
}

bool ReaderPool::is_small() {
  const std::lock_guard lock(mutex_);
  return !is_started_ && queue_.final_chunk_count().has_value() && readers_wanted() == 1;
}

void ReaderPool::read_here(const std::function<void()>& between) {
  {
    const std::lock_guard lock(mutex_);
    is_started_ = true;
  }
  queue_.add_reader();
  read_({.number = 0, .between = between, .is_enough = {}});
}

void ReaderPool::help(const std::function<bool()>& is_enough) {
  using Clock = std::chrono::steady_clock;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.is_stopping()) return;  // join() may have seen that there is no helper
    ++helpers_;
  }
  // The caller polls between calls, when no copy is in flight: what it polls may stop the load.
  const Clock::time_point end = Clock::now() + kHelpFor;
  read_({.number = 0, .between = {}, .is_enough = [&] {
           return Clock::now() >= end || is_enough();
         }});
  const std::lock_guard lock(mutex_);
  --helpers_;
  helped_.notify_all();
}

void ReaderPool::join() noexcept {
  std::unique_lock lock(mutex_);
  helped_.wait(lock, [&] { return helpers_ == 0; });
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace safetensors::device
