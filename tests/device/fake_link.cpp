#include "fake_link.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <thread>

namespace fake {
namespace {

/// The driver copies pageable memory through pinned memory of its own, by one thread.
constexpr int kPageableFactor = 4;

long nanoseconds(Clock::duration duration) {
  return static_cast<long>(std::chrono::nanoseconds(duration).count());
}

}  // namespace

Clock::duration LinkModel::time_of(std::size_t nbytes) const {
  const double seconds = static_cast<double>(nbytes) / nbytes_per_second;
  return latency + std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

Time CopyEngine::add(const LinkModel& link, std::size_t nbytes, bool is_pageable, Time earliest) {
  const Time begin = std::max({Clock::now(), earliest, free_at_});
  const Clock::duration time = link.time_of(nbytes);
  free_at_ = begin + (is_pageable ? kPageableFactor * time : time);
  if (times_.copies++ == 0) times_.begin_ns = nanoseconds(begin.time_since_epoch());
  times_.nbytes += static_cast<long>(nbytes);
  times_.busy_ns += nanoseconds(time);
  times_.end_ns = nanoseconds(free_at_.time_since_epoch());
  return free_at_;
}

void wait_until(std::unique_lock<std::mutex>& lock, Time time, bool is_exact) {
  if (time <= Clock::now()) return;
  constexpr long kSecond = 1'000'000'000;
  constexpr long kPolled = 100'000;
  const long at = nanoseconds(time.time_since_epoch()) - (is_exact ? kPolled : 0);
  const std::timespec until{static_cast<std::time_t>(at / kSecond), at % kSecond};
  lock.unlock();
  // To a point in time: a thread that is preempted before it sleeps does not sleep longer.
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
  while (Clock::now() < time) std::this_thread::yield();
  lock.lock();
}

}  // namespace fake
