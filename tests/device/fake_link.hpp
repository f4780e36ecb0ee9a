// The time that copies take in the timed mode of the fake driver.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>

#include "fake_cuda.hpp"

namespace fake {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

/// The link between the host and a device.
struct LinkModel {
  double nbytes_per_second = 1;
  std::chrono::nanoseconds latency{0};

  /// Returns how long a copy from pinned memory takes.
  [[nodiscard]] Clock::duration time_of(std::size_t nbytes) const;
};

/// Copies for one device in one direction. An engine has no thread: the end of a copy is known when
/// it is queued. A copy that is queued before the one ahead of it ends begins at that end, however
/// late a thread that waited woke up.
class CopyEngine {
 public:
  /// Adds a copy that can begin at `earliest` or now. Returns when it ends.
  Time add(const LinkModel& link, std::size_t nbytes, bool is_pageable, Time earliest);
  [[nodiscard]] const EngineTimes& times() const { return times_; }

 private:
  Time free_at_{};
  EngineTimes times_{};
};

/// Waits without the lock until that time, if it is not over. `is_exact`: polls the clock at the
/// end, as the driver does unless an event says otherwise; else a busy machine may wake the thread
/// late.
void wait_until(std::unique_lock<std::mutex>& lock, Time time, bool is_exact);

}  // namespace fake
