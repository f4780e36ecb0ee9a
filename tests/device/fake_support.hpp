// Helpers for tests with the fake driver.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "fake_cuda.hpp"

namespace test {

inline void succeed(int code) {
  if (code != 0) throw std::runtime_error("the driver returned " + std::to_string(code));
}

/// Resets the fake driver for one test. The destructor checks that the test and the library called
/// it without misuse.
class FakeDriver {
 public:
  explicit FakeDriver(fake::Mode mode, int delay_us = 0) {
    reset();
    fakecuda_mode(mode, delay_us);
    depth_ = fakecuda_stat(fake::kContextDepthNow);
    events_ = fakecuda_stat(fake::kEventsNow);
    unmapped_ = fakecuda_stat(fake::kUnmappedRangesNow);
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  ~FakeDriver() {
    CHECK(fakecuda_stat(fake::kCallsWithoutContext) == 0);
    CHECK(fakecuda_stat(fake::kDeadUses) == 0);
    CHECK(fakecuda_stat(fake::kForeignUses) == 0);
    CHECK(fakecuda_stat(fake::kUnpinnedInUse) == 0);
    CHECK(fakecuda_stat(fake::kBlockingStreams) == 0);
    CHECK(fakecuda_stat(fake::kCapturesBroken) == 0);
    CHECK(fakecuda_stat(fake::kUnmappedRangesNow) == unmapped_);
    CHECK(fakecuda_stat(fake::kContextDepthNow) == depth_);
    reset();
  }
  /// Returns the number of events created since then and not destroyed.
  [[nodiscard]] long events_left() const { return fakecuda_stat(fake::kEventsNow) - events_; }

 private:
  static void reset() {
    fakecuda_clear();
    fakecuda_mode(fake::kEager, 0);
    int capture_mode = 0;  // a failed call may have left another
    cuThreadExchangeStreamCaptureMode(&capture_mode);
    fakecuda_clear();
    fakecuda_devices(2);
  }
  long depth_ = 0;
  long events_ = 0;
  long unmapped_ = 0;
};

/// Makes a device's primary context current on this thread, as programs that use the device do.
class Current {
 public:
  explicit Current(int device) {
    succeed(cuInit(0));
    void* context = nullptr;
    succeed(cuDevicePrimaryCtxRetain(&context, device));
    succeed(cuCtxPushCurrent_v2(context));
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() { cuCtxPopCurrent_v2(nullptr); }
};

/// A caller's stream, in the current context.
class OwnStream {
 public:
  OwnStream() { succeed(cuStreamCreate(&handle_, 1)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { cuStreamDestroy_v2(handle_); }
  [[nodiscard]] void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
};

inline std::uint64_t address_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace test
