// wait_all() for several loads.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>

#include "io/system.hpp"
#include "load_support.hpp"

using safetensors::wait_all;
using test::Config;
using test::deadline;
using test::fake_device;
using test::FakeDriver;
using test::Load;
using test::MemorySource;
using test::Wanted;

namespace {

/// One load to each of two devices and the host.
struct Several {
  explicit Several(std::size_t nbytes) {
    for (std::size_t i = 0; i < 3; ++i) {
      sources[i] = std::make_shared<MemorySource>(nbytes + i, static_cast<std::uint32_t>(i + 1));
      wanted[i] = std::make_unique<Wanted>(sources[i]);
      wanted[i]->add_all(5000);
      const test::Device device = i == 2 ? test::Device() : fake_device(static_cast<int>(i));
      loads[i] = std::make_unique<Load>(device, wanted[i]->sources());
      loads[i]->add(wanted[i]->tensors());
      loads[i]->finish();
      pointers[i] = loads[i].get();
      total += wanted[i]->nbytes();
    }
  }

  [[nodiscard]] std::size_t right_count() const {
    std::size_t count = 0;
    for (const auto& each : wanted) count += each->right_count();
    return count;
  }

  std::array<std::shared_ptr<MemorySource>, 3> sources;
  std::array<std::unique_ptr<Wanted>, 3> wanted;
  std::array<std::unique_ptr<Load>, 3> loads;
  std::array<Load*, 3> pointers{};
  std::uint64_t total = 0;
};

}  // namespace

TEST_CASE("several: every byte is loaded, and progress is the sum") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  Several several(90'000);
  std::uint64_t before = 0;
  wait_all(several.pointers, deadline(), [&](std::uint64_t done, std::uint64_t total) {
    CHECK(total == several.total);
    CHECK(done >= before);
    before = done;
  });
  CHECK(before == several.total);
  unsigned threads = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(several.wanted[i]->is_all_right());
    threads += several.loads[i]->thread_count();
  }
  CHECK(threads <=
        std::max(3U, safetensors::io::processor_count() + 2));  // each share is rounded up
}

TEST_CASE("several: they run at the same time") {
  const FakeDriver driver(fake::kEager);
  const Config config({.chunk_nbytes = 4096});
  Several several(40'000);
  std::array<std::atomic<bool>, 3> has_begun{};
  std::atomic<bool> was_alone{false};
  for (std::size_t i = 0; i < 3; ++i) {
    several.sources[i]->on_read = [&, i] {
      has_begun[i] = true;
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (!(has_begun[0] && has_begun[1] && has_begun[2])) {
        if (std::chrono::steady_clock::now() > end) was_alone = true;
        if (was_alone) return;
        std::this_thread::yield();
      }
    };
  }
  wait_all(several.pointers, deadline());
  CHECK_FALSE(was_alone);
}

TEST_CASE("several: the first that fails stops the others") {
  for (std::size_t failing = 0; failing < 3; ++failing) {
    CAPTURE(failing);
    const FakeDriver driver(fake::kAsync);
    const Config config({.chunk_nbytes = 4096});
    Several several(400'000);
    for (std::size_t i = 0; i < 3; ++i) {
      several.sources[i]->delay = std::chrono::milliseconds(i == failing ? 1 : 20);
    }
    several.sources[failing]->ends_at = 10'000;
    CHECK_THROWS_WITH_AS(wait_all(several.pointers, deadline()), doctest::Contains("cut short"),
                         safetensors::Error);
    for (const auto& load : several.loads) CHECK(load->is_stopped());
    const std::size_t loaded = several.right_count();
    CHECK(loaded < several.wanted[0]->size() * 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    CHECK(several.right_count() == loaded);
  }
}

TEST_CASE("several: an interrupt stops all, and so does stop() of one") {
  const FakeDriver driver(fake::kEager);
  const Config config({.chunk_nbytes = 4096});
  for (const bool throws : {true, false}) {
    Several several(400'000);
    for (const auto& source : several.sources) source->delay = std::chrono::milliseconds(10);
    int calls = 0;
    const auto interrupt = [&] {
      if (++calls < 2) return;
      if (throws) throw std::runtime_error("Ctrl-C");
      several.loads[2]->stop();
    };
    if (throws) {
      CHECK_THROWS_WITH(wait_all(several.pointers, interrupt), "Ctrl-C");
    } else {
      wait_all(several.pointers, interrupt);
    }
    for (const auto& load : several.loads) CHECK(load->is_stopped());
    CHECK(several.loads[0]->done_nbytes() < several.wanted[0]->nbytes());
  }
}

TEST_CASE("several: one load, and no load") {
  const FakeDriver driver(fake::kEager);
  wait_all({});
  Wanted wanted(std::make_shared<MemorySource>(50'000));
  wanted.add_all(7000);
  Load load(fake_device(), wanted.sources());
  load.add(wanted.tensors());
  load.finish();
  Load* const pointer = &load;
  wait_all({&pointer, 1}, deadline());
  CHECK(wanted.is_all_right());
}
