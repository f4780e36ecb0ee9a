// Failures of the driver, the files and the caller's callbacks. Each load throws one error and
// writes nothing after it, and the next load succeeds.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "load_support.hpp"

namespace {

using namespace std::chrono_literals;
using safetensors::Device;
using safetensors::Error;
using safetensors::ErrorCode;
using safetensors::Load;
using test::Config;
using test::deadline;
using test::error_of;
using test::fake_device;
using test::FakeDriver;
using test::MemorySource;
using test::outcome_of;
using test::Wanted;

constexpr int kIllegalAddress = 700;
constexpr int kLaunchFailed = 719;

/// Reloads the driver, so that devices are opened and streams made anew.
Device fresh_device(int index = 0) {
  (void)fake_device(index);
  safetensors::detail::use_cuda_driver(SAFETENSORS_FAKE_CUDA);
  return Device::cuda(index);
}

bool contains(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

/// Returns whether nothing is written any more, even when the device runs all queued work.
bool is_over(Wanted& wanted) {
  wanted.poison();
  fakecuda_run();
  return wanted.is_poisoned();
}

struct EntryPoint {
  const char* symbol;
  const char* said;       ///< the function's name in errors
  bool names_tensor;      ///< the error names a tensor
  bool may_fail = false;  ///< the load succeeds by other means
};

// In the order in which a load calls them.
constexpr EntryPoint kEntryPoints[] = {
    {"cuInit", "cuInit", false},
    {"cuDeviceGet", "cuDeviceGet", false},
    {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", false},
    {"cuDeviceGetAttribute", "", false, true},
    {"cuCtxPushCurrent_v2", "cuCtxPushCurrent", false},
    {"cuThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode", false},
    {"cuStreamIsCapturing", "cuStreamIsCapturing", false},
    {"cuStreamCreate", "cuStreamCreate", false},
    {"cuMemHostRegister_v2", "", false, true},
    {"cuEventCreate", "cuEventCreate", false},
    {"cuEventRecord", "cuEventRecord", false},
    {"cuStreamWaitEvent", "cuStreamWaitEvent", true},
    {"cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync", true},
    {"cuEventQuery", "cuEventQuery", true},
    {"cuEventSynchronize", "cuEventSynchronize", true},
    {"cuStreamSynchronize", "cuStreamSynchronize", false},
    {"cuEventDestroy_v2", "", false, true},
};

/// Loads with a driver that was not used before.
void load_fresh(Wanted& wanted, unsigned threads) { wanted.load(fresh_device(), threads); }

}  // namespace

TEST_CASE("failures: any call to the driver, with any error") {
  const Config config({.chunk_nbytes = 4096, .slots = 2});
  const auto source = std::make_shared<MemorySource>(12 * 4096);
  for (const unsigned threads : {1U, 3U}) {
    std::map<std::string, long> calls;
    {
      const FakeDriver driver(fake::kLazy);
      Wanted wanted(source);
      wanted.add_all(3000);
      load_fresh(wanted, threads);
      for (const EntryPoint& entry : kEntryPoints)
        calls[entry.symbol] = fakecuda_calls(entry.symbol);
    }
    for (const EntryPoint& entry : kEntryPoints) {
      CAPTURE(std::string(entry.symbol));
      REQUIRE(calls[entry.symbol] > 0);
      for (const long nth : {1L, 2L, 3L, calls[entry.symbol]}) {
        if (nth > calls[entry.symbol]) continue;
        for (const int code : {1, 2, kIllegalAddress, kLaunchFailed}) {
          CAPTURE(threads);
          CAPTURE(nth);
          CAPTURE(code);
          const bool is_sticky = code >= kIllegalAddress;
          const FakeDriver driver(fake::kLazy);
          Wanted wanted(source);
          wanted.add_all(3000);
          (void)safetensors::release_staging();
          const long pinned = fakecuda_stat(fake::kRangesNow);
          fakecuda_fault(entry.symbol, nth, code);
          std::string outcome = "ok";
          try {
            load_fresh(wanted, threads);
          } catch (const Error& error) {
            outcome = test::name_of(error.code());
            CHECK(contains(error, "(" + std::to_string(code) + ")"));
            if (!entry.may_fail && !is_sticky) CHECK(contains(error, entry.said));
            // The first to notice a dead context may be a reader that has no tensor yet.
            if (entry.names_tensor && (threads == 1 || !is_sticky)) {
              CHECK(contains(error, "tensor `t"));
            }
          }
          // With several readers the number of calls varies, and a fault after the last copy has no
          // effect.
          const bool is_last = nth > 1 && nth == calls[entry.symbol];
          if (entry.may_fail && !is_sticky) {
            CHECK(outcome == "ok");
          } else if (!entry.may_fail &&
                     (nth == 1 || (entry.names_tensor && threads == 1 && !is_last))) {
            CHECK(outcome == "kDevice");
          }
          if (outcome == "ok") CHECK(wanted.is_all_right());
          CHECK(is_over(wanted));
          fakecuda_clear();
          // An event is lost if the context cannot be made current, or destroying it fails.
          if (!is_sticky) CHECK(driver.events_left() <= 1);

          fakecuda_mode(fake::kLazy, 0);
          wanted.load(fake_device(), threads);
          CHECK(wanted.is_all_right());
          (void)safetensors::release_staging();
          const long lost = fakecuda_stat(fake::kRangesNow) - pinned;
          CHECK(lost <= (is_sticky ? static_cast<long>(threads) : 0));
        }
      }
    }
  }
}

TEST_CASE("failures: memory that cannot be registered is allocated by the driver, or pageable") {
  const Config config({.chunk_nbytes = 4096});
  const auto source = std::make_shared<MemorySource>(200'000);
  for (const fake::Mode mode : {fake::kAsync, fake::kLazy}) {
    for (const unsigned threads : {1U, 4U}) {
      Wanted wanted(source);
      wanted.add_all(7000);
      {
        const FakeDriver driver(mode);
        fakecuda_fault("cuMemHostRegister_v2", 0, 2);
        wanted.load(fresh_device(), threads);
        CHECK(wanted.is_all_right());
        CHECK(fakecuda_calls("cuMemHostAlloc") > 0);
        CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
        CHECK(safetensors::release_staging() > 0);
        CHECK(fakecuda_calls("cuMemFreeHost") == fakecuda_calls("cuMemHostAlloc"));
      }
      wanted.poison();
      {
        const FakeDriver driver(mode);
        fakecuda_fault("cuMemHostRegister_v2", 0, 2);
        fakecuda_fault("cuMemHostAlloc", 0, 2);
        wanted.load(fresh_device(), threads);
        CHECK(wanted.is_all_right());
        CHECK(fakecuda_stat(fake::kPageableCopies) > 0);
        CHECK(safetensors::release_staging() == 0);
      }
      wanted.poison();
      {
        const FakeDriver driver(mode);
        fakecuda_attribute(99, 0);  // as on Windows with a display driver
        wanted.load(fresh_device(), threads);
        CHECK(wanted.is_all_right());
        CHECK(fakecuda_calls("cuMemHostRegister_v2") == 0);
        CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
        CHECK(safetensors::release_staging() > 0);
      }
    }
  }
}

TEST_CASE("failures: after an error that ends the context, staging memory is leaked") {
  const Config config({.chunk_nbytes = 4096});
  const FakeDriver driver(fake::kLazy);
  Wanted wanted(std::make_shared<MemorySource>(200'000));
  wanted.add_all(7000);
  (void)safetensors::release_staging();
  const long pinned = fakecuda_stat(fake::kRangesNow);
  const Device device = fresh_device();
  fakecuda_fault("cuMemcpyHtoDAsync_v2", 5, kIllegalAddress);
  CHECK(contains(error_of([&] { wanted.load(device, 1); }), "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
  CHECK(safetensors::release_staging() == 0);
  CHECK(fakecuda_stat(fake::kRangesNow) == pinned + 1);
  for (int i = 0; i < 3; ++i) {
    const Error error = error_of([&] { wanted.load(device, 2); });
    CHECK(error.code() == ErrorCode::kDevice);
    CHECK(contains(error, "(700)"));
  }
  CHECK(is_over(wanted));
  fakecuda_clear();
  wanted.load(device, 2);
  CHECK(wanted.is_all_right());
}

TEST_CASE("failures: a driver that is shut down during a load") {
  const Config config({.chunk_nbytes = 4096});
  for (const unsigned threads : {1U, 3U}) {
    const FakeDriver driver(fake::kAsync);
    const auto source = std::make_shared<MemorySource>(200'000);
    std::atomic<int> reads{0};
    source->on_read = [&] {
      if (++reads == 5) fakecuda_mode(fake::kGone, 0);
    };
    Wanted wanted(source);
    wanted.add_all(7000);
    const Device device = fake_device();
    const long depth = fakecuda_stat(fake::kContextDepthNow);
    const Error error = error_of([&] { wanted.load(device, threads); });
    CHECK(error.code() == ErrorCode::kDevice);
    CHECK(contains(error, "(4)"));
    CHECK(outcome_of([&] { wanted.load(device, threads); }) == "kDevice");
    fakecuda_clear();
    fakecuda_run();
    CHECK(fakecuda_stat(fake::kContextDepthNow) == depth);
  }
}

TEST_CASE("failures: a truncated file") {
  const Config config({.chunk_nbytes = 4096});
  for (const unsigned threads : {1U, 3U}) {
    for (const bool is_host : {false, true}) {
      const FakeDriver driver(fake::kLazy);
      const auto source = std::make_shared<MemorySource>(50 * 4096);
      source->ends_at = 100'000;
      Wanted wanted(source);
      wanted.add_all(7000);
      const Device device = is_host ? Device() : fake_device();
      const Error error = error_of([&] { wanted.load(device, threads); });
      CHECK(error.code() == ErrorCode::kFileChanged);
      CHECK(contains(error, "the file was cut short"));
      CHECK(contains(error, "tensor `t1"));  // 13 or 14
      CHECK(is_over(wanted));
      CHECK(driver.events_left() == 0);
    }
  }
}

TEST_CASE("failures: what a source throws propagates unchanged") {
  struct Unusual : std::exception {};
  const Config config({.chunk_nbytes = 4096});
  for (const unsigned threads : {1U, 3U}) {
    for (const bool is_host : {false, true}) {
      const FakeDriver driver(fake::kLazy);
      const auto source = std::make_shared<MemorySource>(50 * 4096);
      std::atomic<int> reads{0};
      source->on_read = [&] {
        if (++reads == 9) throw Unusual();
      };
      Wanted wanted(source);
      wanted.add_all(7000);
      const Device device = is_host ? Device() : fake_device();
      CHECK_THROWS_AS(wanted.load(device, threads), Unusual);
      CHECK(is_over(wanted));
      wanted.load(device, threads);
      CHECK(wanted.is_all_right());
      source->on_read = [&] { safetensors::fail(ErrorCode::kIo, "a disk that broke", 5); };
      const Error error = error_of([&] { wanted.load(device, threads); });
      CHECK(error.code() == ErrorCode::kIo);
      CHECK(error.os_error() == 5);
    }
  }
}

TEST_CASE("failures: wait_for() and next_ready() throw the error") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  const auto source = std::make_shared<MemorySource>(50 * 4096);
  source->ends_at = 100'000;
  Wanted wanted(source);
  wanted.add_all(7000);
  Load load(fake_device(), wanted.sources(), {.threads = 2});
  load.add(wanted.tensors());
  load.finish();
  load.start();
  const auto last = static_cast<Load::Index>(wanted.size() - 1);
  CHECK(outcome_of([&] { (void)load.wait_for(last, deadline()); }) == "kFileChanged");
  CHECK(outcome_of([&] {
          while (const auto tensor = load.next_ready(deadline())) CHECK(wanted.is_right(*tensor));
        }) == "kFileChanged");
  CHECK(outcome_of([&] { load.wait(deadline()); }) == "kFileChanged");
  CHECK(is_over(wanted));
}

TEST_CASE("failures: an interrupt ends a busy load soon") {
  struct Signal : std::exception {};
  const Config config({.chunk_nbytes = 4096});
  for (const fake::Mode mode : {fake::kEager, fake::kAsync, fake::kLazy}) {
    for (const unsigned threads : {1U, 2U}) {
      for (const bool is_host : {false, true}) {
        CAPTURE(mode);
        CAPTURE(threads);
        CAPTURE(is_host);
        const FakeDriver driver(mode, 100);
        const auto source = std::make_shared<MemorySource>(2000 * 4096);
        source->delay = 1ms;  // a second or more in total
        Wanted wanted(source);
        wanted.add_all(4096);
        Load load(is_host ? Device() : fake_device(), wanted.sources(), {.threads = threads});
        load.add(wanted.tensors());
        load.finish();
        CHECK_THROWS_AS(load.wait([] { throw Signal(); }), Signal);
        CHECK(load.done_nbytes() < wanted.nbytes() / 2);
        CHECK(is_over(wanted));
      }
    }
  }
}

TEST_CASE("failures: a progress report may end the load") {
  struct Enough : std::exception {};
  const Config config({.chunk_nbytes = 4096});
  const FakeDriver driver(fake::kLazy);
  const auto source = std::make_shared<MemorySource>(1000 * 4096);
  source->delay = 1ms;
  Wanted wanted(source);
  wanted.add_all(4096);
  for (const unsigned threads : {1U, 2U}) {
    Load load(fake_device(), wanted.sources(), {.threads = threads});
    load.add(wanted.tensors());
    load.finish();
    const auto stop_early = [](std::uint64_t done, std::uint64_t total) {
      if (done < total) throw Enough();
    };
    CHECK_THROWS_AS(load.wait({}, stop_early), Enough);
    CHECK(is_over(wanted));
  }
}
