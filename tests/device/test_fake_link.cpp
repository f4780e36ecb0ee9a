// The fake driver's timed mode. Ends of copies are compared exactly: they follow from the times of
// the calls, however late the threads of a busy machine run.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "load_support.hpp"

namespace {

using std::chrono::duration_cast;
using std::chrono::nanoseconds;
using test::address_of;
using test::Current;
using test::FakeDriver;
using test::OwnStream;

constexpr double kRate = 1e9;  // a byte takes a nanosecond
constexpr long kLatency = 1'000'000;
constexpr std::size_t kNbytes = 19'000'000;
constexpr long kTime = 20'000'000;  // of a copy of kNbytes

long now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<long>(duration_cast<nanoseconds>(time).count());
}

fake::EngineTimes times_of(int device, fake::Direction direction = fake::kToDevice) {
  fake::EngineTimes times{};
  fakecuda_engine_times(device, direction, &times);
  return times;
}

/// A driver in timed mode, with pinned and pageable memory.
class TimedDriver {
 public:
  TimedDriver() {
    fakecuda_timed(kRate, kLatency);
    test::succeed(cuMemHostAlloc(&pinned_, kNbytes, 0));
  }
  TimedDriver(const TimedDriver&) = delete;
  TimedDriver& operator=(const TimedDriver&) = delete;
  ~TimedDriver() { cuMemFreeHost(pinned_); }

  [[nodiscard]] void* pinned() const { return pinned_; }
  [[nodiscard]] std::byte* pageable() { return pageable_.data(); }
  void copy(const OwnStream& stream) {
    test::succeed(cuMemcpyHtoDAsync_v2(to_, pinned_, kNbytes, stream.handle()));
  }
  void copy_to_host(const OwnStream& stream) {
    test::succeed(cuMemcpyDtoHAsync_v2(pinned_, to_, kNbytes, stream.handle()));
  }
  void copy_pageable(const OwnStream& stream) {
    test::succeed(cuMemcpyHtoDAsync_v2(to_, pageable(), kNbytes, stream.handle()));
  }

 private:
  const FakeDriver driver_{fake::kEager};
  const Current current_{0};
  void* pinned_ = nullptr;
  std::vector<std::byte> pageable_{kNbytes};
  std::byte device_{};
  std::uint64_t to_ = address_of(&device_);  // of memory that is never read or written
};

}  // namespace

TEST_CASE("timed: a copy returns at once, and its stream waits for its time") {
  TimedDriver driver;
  const OwnStream stream;
  void* event = nullptr;
  REQUIRE(cuEventCreate(&event, 2) == 0);
  CHECK(cuEventQuery(event) == 0);
  const long before = now();
  driver.copy(stream);
  const long after = now();
  REQUIRE(cuEventRecord(event, stream.handle()) == 0);
  const bool is_done = cuEventQuery(event) == 0;
  CHECK((!is_done || now() >= before + kTime));
  CHECK(cuEventSynchronize(event) == 0);
  CHECK(now() >= before + kTime);
  CHECK(now() < before + 100 * kTime);
  CHECK(cuEventQuery(event) == 0);
  CHECK(cuStreamSynchronize(stream.handle()) == 0);
  CHECK(cuEventDestroy_v2(event) == 0);
  const fake::EngineTimes times = times_of(0);
  CHECK(times.copies == 1);
  CHECK(times.nbytes == static_cast<long>(kNbytes));
  CHECK(times.busy_ns == kTime);
  CHECK(times.begin_ns >= before);
  CHECK(times.begin_ns <= after);
  CHECK(times.end_ns == times.begin_ns + kTime);
  CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
}

TEST_CASE("timed: queued copies follow each other, also if a thread wakes up late") {
  TimedDriver driver;
  const OwnStream a;
  const OwnStream b;
  long end = 0;
  for (int i = 0; i < 10; ++i) {
    const OwnStream& stream = i % 2 == 0 ? a : b;
    // As a reader with two slots does; each wakes up in the middle of the other's copy.
    if (i >= 2) REQUIRE(cuStreamSynchronize(stream.handle()) == 0);
    const long before = now();
    driver.copy(stream);
    const long after = now();
    const long begin = times_of(0).end_ns - kTime;
    CHECK(begin >= std::max(end, before));
    CHECK(begin <= std::max(end, after));
    end = times_of(0).end_ns;
  }
  CHECK(times_of(0).busy_ns == 10 * kTime);
  CHECK(cuStreamSynchronize(a.handle()) == 0);
  CHECK(cuStreamSynchronize(b.handle()) == 0);
  CHECK(now() >= end);
}

TEST_CASE("timed: each device has an engine for each direction") {
  TimedDriver driver;
  const OwnStream a;
  const OwnStream b;
  const OwnStream c;
  const long before = now();
  driver.copy(a);
  driver.copy(c);  // behind the first copy
  driver.copy_to_host(b);
  long after = now();
  CHECK(times_of(0, fake::kToHost).begin_ns <= after);
  CHECK(times_of(0, fake::kToHost).busy_ns == kTime);
  CHECK(times_of(0).end_ns >= before + 2 * kTime);
  {
    const Current other(1);
    const OwnStream stream;
    driver.copy(stream);
    after = now();
    CHECK(cuStreamSynchronize(stream.handle()) == 0);
  }
  CHECK(times_of(1).begin_ns <= after);
  CHECK(times_of(1).end_ns == times_of(1).begin_ns + kTime);
  CHECK(times_of(1, fake::kToHost).copies == 0);
  for (const OwnStream* const stream : {&a, &b, &c}) {
    CHECK(cuStreamSynchronize(stream->handle()) == 0);
  }
}

TEST_CASE("timed: a stream that waits for an event copies after it") {
  TimedDriver driver;
  const OwnStream a;
  const OwnStream b;
  void* event = nullptr;
  REQUIRE(cuEventCreate(&event, 2) == 0);
  driver.copy(a);
  REQUIRE(cuEventRecord(event, a.handle()) == 0);
  REQUIRE(cuStreamWaitEvent(b.handle(), event, 0) == 0);
  driver.copy_to_host(b);
  CHECK(times_of(0, fake::kToHost).begin_ns >= times_of(0).end_ns);
  CHECK(cuEventDestroy_v2(event) == 0);
  CHECK(cuStreamSynchronize(b.handle()) == 0);
}

TEST_CASE("timed: a pageable copy takes four times as long, and blocks its caller") {
  TimedDriver driver;
  const OwnStream stream;
  const long before = now();
  driver.copy_pageable(stream);
  CHECK(now() >= before + 4 * kTime);
  const fake::EngineTimes times = times_of(0);
  CHECK(times.end_ns == times.begin_ns + 4 * kTime);
  CHECK(times.busy_ns == kTime);  // the link is idle for three quarters of it
  CHECK(fakecuda_stat(fake::kPageableCopies) == 1);
}

TEST_CASE("timed: work that was queued runs first, and other modes copy again") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream stream;
  unsigned char from = 5;
  unsigned char to = 0;
  const auto copy = [&] {
    return cuMemcpyHtoDAsync_v2(address_of(&to), &from, 1, stream.handle());
  };
  REQUIRE(copy() == 0);
  fakecuda_timed(kRate, kLatency);
  CHECK(to == 5);
  from = 6;
  REQUIRE(copy() == 0);
  CHECK(to == 5);
  fakecuda_mode(fake::kLazy, 0);
  from = 7;
  REQUIRE(copy() == 0);
  CHECK(cuStreamSynchronize(stream.handle()) == 0);
  CHECK(to == 7);
  REQUIRE(cuMemcpyDtoHAsync_v2(&from, address_of(&to), 1, stream.handle()) == 0);
  to = 8;
  CHECK(cuStreamSynchronize(stream.handle()) == 0);
  CHECK(from == 8);
  fakecuda_clear();
  CHECK(times_of(0).copies == 0);
}

TEST_CASE("timed: a load takes the time of its copies, and copies nothing") {
  const FakeDriver driver(fake::kEager);
  const auto device = test::fake_device();
  const test::Config config({.chunk_nbytes = 1 << 20});
  constexpr std::size_t kTensor = 100'000;
  test::Wanted wanted(std::make_shared<test::MemorySource>(100 * kTensor));
  wanted.add_all(kTensor);
  fakecuda_timed(kRate / 4, 0);
  const long before = now();
  wanted.load(device, 2);
  CHECK(now() >= before + static_cast<long>(4 * 100 * kTensor));
  CHECK(now() < before + static_cast<long>(100 * 4 * 100 * kTensor));
  CHECK(wanted.is_poisoned());
  const fake::EngineTimes times = times_of(0);
  CHECK(times.nbytes == static_cast<long>(100 * kTensor));
  CHECK(times.busy_ns == 4 * times.nbytes);
  CHECK(times.end_ns - times.begin_ns >= times.busy_ns);
  CHECK(now() >= times.end_ns);
}
