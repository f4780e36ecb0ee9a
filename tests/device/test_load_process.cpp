// Loads and the rest of the process: devices, threads, contexts, captures, forks.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "load_support.hpp"
#include "posix_support.hpp"

namespace {

using namespace std::chrono_literals;
using safetensors::Device;
using safetensors::ErrorCode;
using safetensors::Load;
using test::Config;
using test::Current;
using test::deadline;
using test::error_of;
using test::fake_device;
using test::FakeDriver;
using test::MemorySource;
using test::outcome_of;
using test::OwnStream;
using test::Wanted;

// ThreadSanitizer starts no threads in a child of a process with threads.
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kThreadsOfChild = 1;
#else
constexpr unsigned kThreadsOfChild = 4;
#endif

}  // namespace

TEST_CASE("process: two devices, each by many threads at once") {
  for (const fake::Mode mode : {fake::kEager, fake::kAsync, fake::kLazy}) {
    const FakeDriver driver(mode, 50);
    const Config config({.chunk_nbytes = 4096});
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    threads.reserve(16);
    for (std::uint32_t thread = 0; thread < 16; ++thread) {
      threads.emplace_back([&, thread] {
        for (std::uint32_t i = 0; i < 5; ++i) {
          Wanted wanted(std::make_shared<MemorySource>(60'000, thread * 10 + i));
          wanted.add_all(7000);
          wanted.load(fake_device(static_cast<int>(thread % 2)), 1 + i % 3);
          if (!wanted.is_all_right()) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("process: a device that does not exist") {
  const FakeDriver driver(fake::kEager);
  (void)fake_device();
  CHECK(Device::has_cuda());
  for (const int index : {2, 7, -1}) {
    const auto error = error_of([&] { (void)Device::cuda(index); });
    CHECK(error.code() == ErrorCode::kDevice);
    CHECK(std::string(error.what()).find("CUDA_ERROR_INVALID_DEVICE (101)") != std::string::npos);
  }
}

TEST_CASE("process: no driver, and one that lacks a function") {
  const FakeDriver driver(fake::kEager);
  (void)fake_device();
  safetensors::detail::use_cuda_driver("/absent/libcuda.so.1");
  CHECK_FALSE(Device::has_cuda());
  const auto error = error_of([] { (void)Device::cuda(0); });
  CHECK(error.code() == ErrorCode::kDevice);
  CHECK(std::string(error.what()).find("/absent/libcuda.so.1") != std::string::npos);
  safetensors::detail::use_cuda_driver("libc.so.6");
  CHECK_FALSE(Device::has_cuda());
  CHECK(std::string(error_of([] { (void)Device::cuda(0); }).what()).find("cuInit") !=
        std::string::npos);
  safetensors::detail::use_cuda_driver(SAFETENSORS_FAKE_CUDA);
  CHECK(Device::has_cuda());
}

TEST_CASE("process: properties of a device") {
  const FakeDriver driver(fake::kEager);
  (void)fake_device();
  CHECK(Device().is_host());
  CHECK(Device().is_integrated());
  CHECK_FALSE(fake_device().is_host());
  CHECK_FALSE(fake_device().is_integrated());
  fakecuda_attribute(18, 1);
  safetensors::detail::use_cuda_driver(SAFETENSORS_FAKE_CUDA);
  CHECK(fake_device().is_integrated());
  fakecuda_clear();
  safetensors::detail::use_cuda_driver(SAFETENSORS_FAKE_CUDA);
  CHECK_FALSE(fake_device().is_integrated());
}

TEST_CASE("process: the caller's context stays current") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  Wanted wanted(std::make_shared<MemorySource>(50'000));
  wanted.add_all(7000);
  void* context = &wanted;
  wanted.load(fake_device(0), 1);
  CHECK(cuCtxGetCurrent(&context) == 0);
  CHECK(context == nullptr);
  const Current other(1);
  void* mine = nullptr;
  CHECK(cuCtxGetCurrent(&mine) == 0);
  for (const unsigned threads : {1U, 3U}) {
    wanted.poison();
    wanted.load(fake_device(0), threads);
    CHECK(wanted.is_all_right());
    CHECK(cuCtxGetCurrent(&context) == 0);
    CHECK(context == mine);
    CHECK_FALSE(fake_device(0).is_capturing(nullptr));
    CHECK(cuCtxGetCurrent(&context) == 0);
    CHECK(context == mine);
  }
  int capture_mode = 0;
  CHECK(cuThreadExchangeStreamCaptureMode(&capture_mode) == 0);
  CHECK(capture_mode == 0);  // as it was
}

TEST_CASE("process: nothing is loaded on a stream that is being captured") {
  const FakeDriver driver(fake::kEager);
  Wanted wanted(std::make_shared<MemorySource>(50'000));
  wanted.add_all(7000);
  fakecuda_capturing(0, 1);
  CHECK(fake_device(0).is_capturing(nullptr));
  CHECK_FALSE(fake_device(1).is_capturing(nullptr));
  const auto error = error_of([&] { wanted.load(fake_device(0)); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(std::string(error.what()).find("captur") != std::string::npos);
  CHECK(wanted.is_poisoned());
  CHECK(fakecuda_calls("cuEventRecord") == 0);
  fakecuda_capturing(0, 0);
  fakecuda_fault("cuStreamIsCapturing", 1,
                 906);  // what the legacy stream returns while another is captured
  CHECK(outcome_of([&] { wanted.load(fake_device(0)); }) == "kInvalidArgument");
  wanted.load(fake_device(0));
  CHECK(wanted.is_all_right());
}

TEST_CASE("process: a load does not disturb a capture on another stream") {
  const FakeDriver driver(fake::kEager);
  const Config config({.chunk_nbytes = 4096});
  const Current current(0);
  const OwnStream captured;
  const OwnStream stream;
  fakecuda_capturing_stream(captured.handle(), 1);
  for (const unsigned threads : {1U, 3U}) {
    (void)safetensors::release_staging();
    Wanted wanted(std::make_shared<MemorySource>(50'000));
    wanted.add_all(7000);
    wanted.load(fake_device(), threads, stream.handle());
    CHECK(wanted.is_all_right());
    CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
  }
}

TEST_CASE("process: many loads share their threads") {
  const FakeDriver driver(fake::kEager);
  const Config config({.chunk_nbytes = 4096});
  constexpr int kLoads = 50;
  std::atomic<int> started{0};
  std::atomic<unsigned> threads_in_all{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  callers.reserve(kLoads);
  for (int i = 0; i < kLoads; ++i) {
    callers.emplace_back([&, i] {
      const auto source = std::make_shared<MemorySource>(40 * 4096, static_cast<std::uint32_t>(i));
      Wanted wanted(source);
      wanted.add_all(4096);
      Load load(fake_device(i % 2), wanted.sources(), {.threads = 8});
      load.add(wanted.tensors());
      load.start();
      // All loads at once: none can end before the last was started.
      ++started;
      while (started < kLoads) std::this_thread::sleep_for(1ms);
      threads_in_all += load.thread_count();
      load.finish();
      load.wait(deadline());
      if (!wanted.is_all_right() || load.thread_count() == 0) ++wrong;
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
  CHECK(threads_in_all >= kLoads);
  CHECK(threads_in_all <= 32 + kLoads);
  // And they are released.
  Wanted wanted(std::make_shared<MemorySource>(100 * 4096));
  wanted.add_all(4096);
  Load load(fake_device(), wanted.sources(), {.threads = 8});
  load.add(wanted.tensors());
  load.start();
  CHECK(load.thread_count() == 8);
}

TEST_CASE("process: staging memory is kept, bounded, and released on request") {
  const FakeDriver driver(fake::kAsync);
  (void)safetensors::release_staging();
  const long pinned = fakecuda_stat(fake::kRangesNbytesNow);
  {
    const Config config({.chunk_nbytes = 65'536, .staging_nbytes = 262'144, .slots = 2});
    Wanted wanted(std::make_shared<MemorySource>(40 * 65'536));
    wanted.add_all(50'000);
    for (int i = 0; i < 10; ++i) {
      wanted.poison();
      wanted.load(fake_device(), 4);  // two of the readers find no staging memory left
      CHECK(wanted.is_all_right());
      CHECK(fakecuda_stat(fake::kRangesNbytesNow) - pinned <= 262'144);
    }
    CHECK(fakecuda_stat(fake::kRangesNbytesNow) > pinned);
    const long registered = fakecuda_calls("cuMemHostRegister_v2");
    wanted.load(fake_device(), 1);
    CHECK(fakecuda_calls("cuMemHostRegister_v2") == registered);
    const auto kept = static_cast<long>(safetensors::release_staging());
    CHECK(kept > 0);
    CHECK(kept <= 262'144);
    CHECK(safetensors::release_staging() == 0);
    CHECK(fakecuda_stat(fake::kRangesNbytesNow) == pinned);
  }
  // A limit below what one reader needs: it uses pageable memory.
  const Config config({.chunk_nbytes = 65'536, .staging_nbytes = 65'536, .slots = 2});
  Wanted wanted(std::make_shared<MemorySource>(10 * 65'536));
  wanted.add_all(50'000);
  wanted.load(fake_device(), 3);
  CHECK(wanted.is_all_right());
  CHECK(fakecuda_stat(fake::kRangesNbytesNow) == pinned);
  CHECK(fakecuda_stat(fake::kPageableCopies) > 0);
}

TEST_CASE("process: a child forked by a callback leaves the load") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  for (const bool is_host : {false, true}) {
    for (const unsigned threads : {1U, 3U}) {
      CAPTURE(is_host);
      CAPTURE(threads);
      const auto slow = std::make_shared<MemorySource>(100 * 4096);
      slow->delay = 4ms;
      Wanted wanted(slow);
      wanted.add_all(4096);
      Load load(is_host ? Device() : fake_device(), wanted.sources(), {.threads = threads});
      load.add(wanted.tensors());
      load.finish();
      pid_t child = -1;
      std::string error;
      try {
        Load* const loads[] = {&load};
        safetensors::wait_all(loads, [&] {
          if (child != -1) return;
          child = ::fork();
          if (child == 0)
            ::alarm(
                20);  // ends a child that hangs; the child returns from fork() as the parent does
        });
      } catch (const safetensors::Error& caught) {
        error = caught.what();
      }
      if (child == 0) ::_exit(error.find("was forked from") != std::string::npos ? 0 : 1);
      CHECK(error.empty());
      CHECK(wanted.is_all_right());
      int status = -1;
      REQUIRE(::waitpid(child, &status, 0) == child);
      CHECK(status == 0);
    }
  }
}

TEST_CASE("process: a child forked while settings change can read and change them") {
  const Config config({.chunk_nbytes = 4096});
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
        safetensors::set_load_config({.chunk_nbytes = 8192});
        safetensors::set_load_config({.chunk_nbytes = 4096});
        (void)safetensors::release_staging();
      }
    });
  }
  int status = 0;
  const auto end = std::chrono::steady_clock::now() + 5s;
  for (int i = 0; i < 300 && status == 0 && std::chrono::steady_clock::now() < end; ++i) {
    status = test::in_child([] {
      ::alarm(20);  // ends a child that hangs
      const safetensors::LoadConfig found = safetensors::load_config();
      safetensors::set_load_config(found);
      (void)safetensors::release_staging();
      return found.chunk_nbytes == 4096 || found.chunk_nbytes == 8192 ? 0 : 1;
    });
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(status == 0);
}

TEST_CASE("process: a forked child cannot use the device, but can load to the host") {
  const FakeDriver driver(fake::kAsync);
  const Config config({.chunk_nbytes = 4096});
  Wanted wanted(std::make_shared<MemorySource>(60'000));
  wanted.add_all(7000);
  const Device device = fake_device();
  wanted.load(device, 3);
  const auto slow = std::make_shared<MemorySource>(60'000);
  slow->delay = 2ms;
  Wanted running(slow);
  running.add_all(4096);
  Load of_parent(device, running.sources(), {.threads = 2});
  of_parent.add(running.tensors());
  of_parent.finish();
  of_parent.start();
  const int status = test::in_child([&] {
    const auto refuses = [](const auto& work) {
      try {
        work();
      } catch (const safetensors::Error& error) {
        return error.code() == ErrorCode::kDevice &&
               std::string(error.what()).find("fork") != std::string::npos;
      }
      return false;
    };
    if (!refuses([&] { (void)Device::cuda(0); })) return 1;
    if (!refuses([&] { (void)Device::cuda(1); })) return 2;
    if (!refuses([&] { wanted.load(device, 1); })) return 3;
    if (!refuses([&] { wanted.load(device, kThreadsOfChild); })) return 4;
    if (!refuses([&] { (void)device.is_capturing(nullptr); })) return 5;
    for (const unsigned threads : {1U, kThreadsOfChild}) {
      wanted.poison();
      wanted.load(Device(), threads);
      if (!wanted.is_all_right()) return 6;
    }
    (void)safetensors::release_staging();
    {
      const Load dropped(Device(), wanted.sources());
    }
    of_parent.~Load();
    return 0;
  });
  CHECK(status == 0);
  of_parent.wait(deadline());
  CHECK(running.is_all_right());
  wanted.poison();
  wanted.load(device, 2);
  CHECK(wanted.is_all_right());
}
