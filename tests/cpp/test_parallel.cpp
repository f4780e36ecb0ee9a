#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "io/parallel.hpp"
#include "support.hpp"

using safetensors::Interrupt;
using safetensors::parallel_for;
using safetensors::io::InterruptTimer;

namespace {

constexpr std::uint64_t kMany = std::uint64_t{1} << 30;

void wait_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

}  // namespace

TEST_CASE("each task runs once, for any number of tasks") {
  for (const std::size_t count : {0U, 1U, 2U, 3U, 7U, 8U, 9U, 1000U}) {
    for (const std::uint64_t nbytes : {std::uint64_t{0}, kMany}) {
      std::vector<std::atomic<int>> runs(count);
      parallel_for(count, nbytes, [&](std::size_t i) { ++runs[i]; }, {});
      for (std::size_t i = 0; i < count; ++i) {
        if (runs[i] != 1) FAIL("task ", i, " of ", count, " ran ", runs[i].load(), " times");
      }
    }
  }
}

TEST_CASE("little work runs on the calling thread") {
  const auto self = std::this_thread::get_id();
  parallel_for(100, 100, [&](std::size_t) { REQUIRE(std::this_thread::get_id() == self); }, {});
}

TEST_CASE("much work is shared among the cores") {
  if (std::thread::hardware_concurrency() < 2) {
    MESSAGE("skipped: a single core");
    return;
  }
  std::atomic<int> elsewhere{0};
  const auto self = std::this_thread::get_id();
  parallel_for(64, kMany,
               [&](std::size_t) {
                 wait_ms(1);
                 if (std::this_thread::get_id() != self) ++elsewhere;
               },
               {});
  CHECK(elsewhere > 0);
}

TEST_CASE("results are seen by the caller") {
  std::vector<int> results(500, 0);  // plain, so that a thread sanitizer sees a missing join
  parallel_for(results.size(), kMany, [&](std::size_t i) { results[i] = 1; }, {});
  for (const int result : results) REQUIRE(result == 1);
}

TEST_CASE("an exception of any task propagates and stops the rest") {
  for (const std::uint64_t nbytes : {std::uint64_t{0}, kMany}) {
    for (const std::size_t bad : {0U, 1U, 50U, 99U}) {
      std::atomic<std::size_t> started{0};
      CHECK_THROWS_AS(parallel_for(100, nbytes,
                                   [&](std::size_t i) {
                                     ++started;
                                     if (i == bad) throw std::out_of_range("bad");
                                     wait_ms(bad == 0 ? 1 : 0);
                                   },
                                   {}),
                      std::out_of_range);
      if (bad == 0) CHECK(started < 100);
    }
  }
}

TEST_CASE("one of several exceptions propagates") {
  CHECK_THROWS_AS(parallel_for(100, kMany, [](std::size_t) { throw std::out_of_range("bad"); }, {}),
                  std::out_of_range);
}

TEST_CASE("the interrupt runs only on the calling thread, and its exception propagates") {
  const auto self = std::this_thread::get_id();
  for (const std::uint64_t nbytes : {std::uint64_t{0}, kMany}) {
    int calls = 0;
    parallel_for(
        20, nbytes, [](std::size_t) { wait_ms(10); },
        [&] {
          ++calls;
          REQUIRE(std::this_thread::get_id() == self);
        });
    CHECK(calls > 0);
    std::atomic<int> started{0};
    struct Stop {};
    CHECK_THROWS_AS(parallel_for(
                        1000, nbytes,
                        [&](std::size_t) {
                          ++started;
                          wait_ms(5);
                        },
                        [] { throw Stop(); }),
                    Stop);
    CHECK(started < 1000);
  }
}

TEST_CASE("the interrupt's exception propagates before those that it causes") {
  const auto self = std::this_thread::get_id();
  std::atomic<bool> is_cancelled{false};
  std::atomic<bool> has_failed{false};
  struct Stop {};
  const auto task = [&](std::size_t) {
    if (std::this_thread::get_id() == self) return wait_ms(30);  // longer than the timer's period
    while (!is_cancelled) wait_ms(1);
    has_failed = true;
    throw std::out_of_range("cancelled");
  };
  const auto interrupt = [&] {
    is_cancelled = true;
    while (!has_failed) wait_ms(1);
    throw Stop();
  };
  CHECK_THROWS_AS(parallel_for(100, kMany, task, interrupt, 2), Stop);
}

TEST_CASE("the timer calls at most every 20 ms") {
  int calls = 0;
  const Interrupt interrupt = [&] { ++calls; };
  const auto start = std::chrono::steady_clock::now();
  InterruptTimer timer(interrupt);
  timer.poll();
  if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(20)) CHECK(calls == 0);
  wait_ms(25);
  timer.poll();
  CHECK(calls >= 1);
  wait_ms(25);
  const int before = calls;
  timer.poll();
  CHECK(calls == before + 1);
}

TEST_CASE("the timer of an empty interrupt does nothing") {
  const Interrupt none;
  InterruptTimer timer(none);
  wait_ms(25);
  CHECK_NOTHROW(timer.poll());
}
