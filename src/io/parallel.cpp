#include "io/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>

#include "io/system.hpp"

namespace safetensors::io {
namespace {

// Below this, starting a thread takes longer than it saves.
constexpr std::uint64_t kParallelThreshold = std::uint64_t{8} << 20;
// More threads copy no faster: memory bandwidth is the limit.
constexpr unsigned kMaxThreads = 8;
constexpr std::int64_t kPollEveryNs = 20'000'000;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Threads::~Threads() {
  for (std::thread& thread : threads_) thread.join();
}

void Threads::start(std::size_t count, const std::function<void()>& work) {
  try {
    threads_.reserve(count);
    while (threads_.size() < count) threads_.emplace_back(work);
  } catch (const std::system_error&) {
    return;  // the system has no more threads: continue with fewer
  } catch (const std::bad_alloc&) {
    return;  // likewise: the tasks that run already would be a half of the work
  }
}

InterruptTimer::InterruptTimer(const Interrupt& interrupt)
    : interrupt_(interrupt), next_ns_(interrupt ? now_ns() + kPollEveryNs : 0) {}

void InterruptTimer::poll() {
  if (interrupt_ && now_ns() >= next_ns_) poll_now();
}

void InterruptTimer::poll_now() {
  if (!interrupt_) return;
  next_ns_ = now_ns() + kPollEveryNs;
  interrupt_();
}

unsigned readers_of(const ByteSource& source, std::uint64_t nbytes) noexcept {
  return nbytes < kParallelThreshold ? 0 : source.concurrency();
}

}  // namespace safetensors::io

namespace safetensors {

void parallel_for(std::size_t count, std::uint64_t nbytes,
                  const std::function<void(std::size_t)>& task, const Interrupt& interrupt,
                  unsigned threads_wanted) {
  io::InterruptTimer timer(interrupt);
  const unsigned most =
      threads_wanted == 0 ? std::min(io::processor_count(), io::kMaxThreads) : threads_wanted;
  const std::size_t threads =
      nbytes < io::kParallelThreshold ? 1 : std::min<std::size_t>(count, most);
  if (threads <= 1) {
    for (std::size_t i = 0; i < count; ++i) {
      timer.poll();
      task(i);
    }
    return;
  }

  // Threads take the next task until none is left. A thread that fails moves `next` to the end, so
  // that the others stop after their current task.
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr first_error;
  std::exception_ptr own_error;  // of this thread
  const auto fail_with_current = [&] {
    next.store(count);
    const std::lock_guard lock(mutex);
    if (!first_error) first_error = std::current_exception();
  };
  const auto work = [&] {
    try {
      for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) task(i);
    } catch (...) {
      fail_with_current();
    }
  };
  {
    io::Threads helpers;  // joined at the end of this block
    helpers.start(threads - 1, work);
    try {
      for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
        timer.poll();
        task(i);
      }
    } catch (...) {
      next.store(count);
      own_error = std::current_exception();
    }
  }
  // Before the other threads' errors: an interrupt may have caused them.
  if (own_error) std::rethrow_exception(own_error);
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace safetensors
