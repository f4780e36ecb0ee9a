// The order of copies, reads and releases. scripts/broken_engines.py checks that each of these
// tests fails if the library breaks its rule.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "load_support.hpp"
#include "posix_support.hpp"

namespace {

using safetensors::Load;
using test::address_of;
using test::Config;
using test::Current;
using test::fake_device;
using test::FakeDriver;
using test::MemorySource;
using test::OwnStream;
using test::Wanted;

constexpr std::size_t kChunk = 16'384;
constexpr std::size_t kMappedChunk = std::size_t{4}
                                     << 20;  // large enough for the allocator to map a slot

/// Loads to memory that work on the caller's stream, still queued, will write. Returns whether the
/// load's bytes are there in the end.
bool load_after_pending_work(void* stream, unsigned threads) {
  const Config config({.chunk_nbytes = kChunk});
  Wanted wanted(std::make_shared<MemorySource>(20 * kChunk));
  wanted.add_all(3 * kChunk + 5);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    test::succeed(cuMemsetD8Async(address_of(wanted.memory_of(i)), 0x55, 1000, stream));
  }
  wanted.load(fake_device(), threads, stream);
  test::succeed(cuStreamSynchronize(stream));
  return wanted.is_all_right();
}

/// Loads many more chunks than there are slots.
bool load_by_few_slots(unsigned threads, unsigned slots) {
  const Config config({.chunk_nbytes = 4096, .streams = 1, .slots = slots});
  Wanted wanted(std::make_shared<MemorySource>(64 * 4096));
  wanted.add_all(5000);
  wanted.load(fake_device(), threads);
  return wanted.is_all_right();
}

}  // namespace

TEST_CASE("order: copies come after the work that was queued on the caller's stream") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream stream;
  for (const unsigned threads : {1U, 3U}) {
    CHECK(load_after_pending_work(stream.handle(), threads));
    CHECK(load_after_pending_work(nullptr, threads));
  }
}

TEST_CASE("order: each addition waits for its own work, whichever is read first") {
  const FakeDriver driver(fake::kLazy);
  const Current current(0);
  const OwnStream stream;
  const Config config({.chunk_nbytes = kChunk, .streams = 1});
  for (const bool is_first : {false, true}) {
    Wanted wanted(std::make_shared<MemorySource>(6 * kChunk));
    wanted.add_all(2 * kChunk);
    const auto tensors = wanted.tensors();
    Load load(fake_device(), wanted.sources(), {.threads = 1});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      test::succeed(cuMemsetD8Async(tensors[i].to, 0x55, 1000, stream.handle()));
      load.add(std::span(tensors).subspan(i, 1), stream.handle(), is_first);
    }
    load.finish();
    load.wait(test::deadline());
    test::succeed(cuStreamSynchronize(stream.handle()));
    CHECK(wanted.is_all_right());
  }
}

TEST_CASE("order: a slot is filled again only after the device has read it") {
  const FakeDriver driver(fake::kLazy);
  for (const unsigned slots : {1U, 2U, 3U}) {
    CHECK(load_by_few_slots(1, slots));
    CHECK(load_by_few_slots(4, slots));
  }
}

TEST_CASE("order: when a load has ended, all copies are done") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = kChunk});
  for (const unsigned threads : {1U, 4U}) {
    Wanted wanted(std::make_shared<MemorySource>(4 * kChunk));
    wanted.add_all(kChunk);
    wanted.load(fake_device(), threads);
    CHECK(wanted.is_all_right());
    CHECK(fakecuda_pending(0) == 0);
  }
}

TEST_CASE("order: a tensor that is ready is loaded") {
  const FakeDriver driver(fake::kLazy, 300);
  const Config config({.chunk_nbytes = 4096, .slots = 2});
  Wanted wanted(std::make_shared<MemorySource>(100 * 4096));
  wanted.add_all(4096);
  Load load(fake_device(), wanted.sources(), {.threads = 1});
  load.add(wanted.tensors());
  load.finish();
  load.start();
  std::size_t right = 0;
  while (const auto tensor = load.next_ready(test::deadline())) {
    right += wanted.is_right(*tensor) ? 1 : 0;
  }
  CHECK(right == wanted.size());
}

TEST_CASE("order: staging memory changes hands only after the device has read it") {
  const FakeDriver driver(fake::kLazy, 300);
  const Config config({.chunk_nbytes = 4096, .streams = 8, .slots = 2});
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (std::uint32_t thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint32_t i = 0; i < 30; ++i) {
        Wanted wanted(std::make_shared<MemorySource>(2 * 4096, thread * 100 + i));
        wanted.add_all(4096);
        wanted.load(fake_device(), 1);
        if (!wanted.is_all_right()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("order: memory is unmapped only after the driver has unpinned it") {
  const FakeDriver driver(fake::kEager);
  const Config config({.chunk_nbytes = kMappedChunk, .slots = 1});
  (void)safetensors::release_staging();
  const long pinned = fakecuda_stat(fake::kRangesNow);
  const long unmapped = fakecuda_stat(fake::kUnmappedRangesNow);
  Wanted wanted(std::make_shared<MemorySource>(kChunk));
  wanted.add_all(kChunk);
  wanted.load(fake_device());
  fakecuda_fault("cuMemHostUnregister", 1, 1);
  CHECK(safetensors::release_staging() == 0);
  CHECK(fakecuda_stat(fake::kRangesNow) == pinned + 1);
  CHECK(fakecuda_stat(fake::kUnmappedRangesNow) == unmapped);
  wanted.poison();
  wanted.load(fake_device());  // with newly pinned memory
  CHECK(wanted.is_all_right());
  CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
  CHECK(safetensors::release_staging() == kMappedChunk);
  CHECK(fakecuda_stat(fake::kRangesNow) == pinned + 1);
}

TEST_CASE("order: staging memory is released while a graph is captured") {
  const FakeDriver driver(fake::kEager);
  const Config config({.chunk_nbytes = kMappedChunk, .slots = 1});
  const Current current(0);
  const OwnStream captured;
  Wanted wanted(std::make_shared<MemorySource>(kChunk));
  wanted.add_all(kChunk);
  for (const char* const pins : {"cuMemHostRegister_v2", "cuMemHostAlloc"}) {
    (void)safetensors::release_staging();
    const long pinned = fakecuda_stat(fake::kRangesNow);
    if (pins == std::string("cuMemHostAlloc")) fakecuda_fault("cuMemHostRegister_v2", 0, 2);
    wanted.load(fake_device());
    CHECK(fakecuda_stat(fake::kRangesNow) == pinned + 1);
    CHECK(fakecuda_calls(pins) == 1);
    fakecuda_capturing_stream(captured.handle(), 1);
    CHECK(safetensors::release_staging() == kMappedChunk);
    CHECK(fakecuda_stat(fake::kRangesNow) == pinned);
    CHECK(fakecuda_stat(fake::kCapturesBroken) == 0);
    fakecuda_capturing_stream(captured.handle(), 0);
  }
}

TEST_CASE("order: what is read after a fork is what the device copies") {
  for (const fake::Mode mode : {fake::kEager, fake::kLazy}) {
    const FakeDriver driver(mode);
    const Config config({.chunk_nbytes = 4096, .slots = 2});
    for (const unsigned threads : {1U, 3U}) {
      const auto source = std::make_shared<MemorySource>(30 * 4096, threads);
      std::atomic<int> reads{0};
      // Forks while staging memory is idle, then between the copies from it.
      source->on_read = [&] {
        if (++reads % 10 == 5) CHECK(test::in_child([] { return 0; }) == 0);
      };
      Wanted wanted(source);
      wanted.add_all(5000);
      CHECK(test::in_child([] { return 0; }) == 0);
      wanted.load(fake_device(), threads);
      CHECK(wanted.is_all_right());
      CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
    }
  }
}

TEST_CASE("the tests of order notice a driver that does not wait") {
  const Current current(0);
  const OwnStream stream;
  {
    const FakeDriver driver(fake::kLazy);
    fakecuda_ignore("cuStreamWaitEvent", 1);
    CHECK(!load_after_pending_work(stream.handle(), 1));
  }
  {
    const FakeDriver driver(fake::kLazy);
    fakecuda_ignore("cuEventSynchronize", 1);
    CHECK(!load_by_few_slots(1, 2));
  }
#if !defined(__SANITIZE_THREAD__)  // which would report the race that this makes
  {
    const FakeDriver driver(fake::kLazy);
    fakecuda_ignore("cuEventQuery", 1);  // returns that the event is done
    fakecuda_ignore("cuEventSynchronize", 1);
    CHECK(!load_by_few_slots(4, 2));
  }
#endif
  {
    const FakeDriver driver(fake::kLazy);
    const Config config({.chunk_nbytes = kChunk});
    Wanted wanted(std::make_shared<MemorySource>(kChunk));
    wanted.add_all(kChunk);
    fakecuda_ignore("cuStreamSynchronize", 1);
    wanted.load(fake_device());
    fakecuda_ignore("cuStreamSynchronize", 0);
    CHECK(wanted.is_poisoned());
    fakecuda_run();
    CHECK(wanted.is_all_right());
  }
}
