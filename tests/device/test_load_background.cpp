// Loads that run in the background, and report tensors as they become ready.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "load_support.hpp"

namespace {

using namespace std::chrono_literals;
using safetensors::Device;
using safetensors::Load;
using safetensors::LoadTensor;
using test::Config;
using test::deadline;
using test::fake_device;
using test::FakeDriver;
using test::MemorySource;
using test::outcome_of;
using test::Wanted;

constexpr fake::Mode kModes[] = {fake::kEager, fake::kAsync, fake::kLazy};

/// Returns the tensors that next_ready() returns, and checks that each is loaded.
std::vector<Load::Index> take_all(Load& load, const Wanted& wanted,
                                  std::chrono::microseconds pause = 0us) {
  std::vector<Load::Index> order;
  while (const auto tensor = load.next_ready(deadline())) {
    CHECK(wanted.is_right(*tensor));
    order.push_back(*tensor);
    if (pause.count() != 0) std::this_thread::sleep_for(pause);
  }
  return order;
}

bool is_each_once(const std::vector<Load::Index>& order, std::size_t count) {
  const std::set<Load::Index> different(order.begin(), order.end());
  return order.size() == count && different.size() == count &&
         (count == 0 || *different.rbegin() == count - 1);
}

}  // namespace

TEST_CASE("background: next_ready() returns each tensor once, to slow and fast consumers") {
  for (const fake::Mode mode : kModes) {
    for (const std::chrono::microseconds pause : {0us, 500us}) {
      for (const bool is_host : {false, true}) {
        const FakeDriver driver(mode, 20);
        const Config config({.chunk_nbytes = 4096});
        const auto source = std::make_shared<MemorySource>(300'000);
        if (pause.count() == 0) source->delay = 300us;
        Wanted wanted(source);
        wanted.add_all(7000);
        wanted.add(0, 0);
        Load load(is_host ? Device() : fake_device(), wanted.sources(), {.threads = 3});
        load.add(wanted.tensors());
        load.finish();
        load.start();
        CHECK(is_each_once(take_all(load, wanted, pause), wanted.size()));
        CHECK(load.thread_count() == 3);
        load.wait(deadline());
        CHECK(load.done_nbytes() == wanted.nbytes());
      }
    }
  }
}

TEST_CASE("background: an empty tensor is ready at once") {
  const FakeDriver driver(fake::kLazy);
  Wanted wanted(std::make_shared<MemorySource>(100));
  wanted.add(0, 0);
  Load load(fake_device(), wanted.sources());
  CHECK(load.add(wanted.tensors()) == 0);
  CHECK(load.next_ready(deadline()) == 0);
  CHECK(load.next_ready(deadline()) == std::nullopt);
  CHECK(load.wait_for(0, deadline()));
  CHECK(outcome_of([&] { (void)load.wait_for(1, deadline()); }) == "kInvalidArgument");
}

TEST_CASE("background: tensors are waited for one by one, in any order") {
  for (const fake::Mode mode : kModes) {
    const FakeDriver driver(mode, 20);
    const Config config({.chunk_nbytes = 4096});
    Wanted wanted(std::make_shared<MemorySource>(200'000));
    wanted.add_all(5000);
    Load load(fake_device(), wanted.sources(), {.threads = 2});
    load.add(wanted.tensors());
    load.finish();
    for (std::size_t i = wanted.size(); i-- > 0;) {
      CHECK(load.wait_for(static_cast<Load::Index>(i), deadline()));
      CHECK(wanted.is_right(i));
    }
    CHECK(load.wait_for(3, deadline()));  // again
    CHECK(is_each_once(take_all(load, wanted), wanted.size()));
  }
}

TEST_CASE("background: many threads wait at once, for one tensor and for any") {
  const FakeDriver driver(fake::kAsync, 50);
  for (int round = 0; round < 10; ++round) {
    const Config config({.chunk_nbytes = 4096});
    Wanted wanted(std::make_shared<MemorySource>(200'000));
    wanted.add_all(2000);
    Load load(fake_device(), wanted.sources(), {.threads = 3});
    load.add(wanted.tensors());
    load.finish();
    std::mutex mutex;
    std::vector<Load::Index> order;
    int left_early = 0;
    std::vector<std::thread> consumers;
    consumers.reserve(6);
    for (unsigned i = 0; i < 6; ++i) {
      consumers.emplace_back([&, i] {
        if (i < 2) {
          CHECK(load.wait_for(static_cast<Load::Index>(i * 40), deadline()));
          return;
        }
        while (const auto tensor = load.next_ready(deadline())) {
          const std::lock_guard lock(mutex);
          order.push_back(*tensor);
        }
        const std::lock_guard lock(mutex);
        if (load.done_nbytes() != wanted.nbytes()) ++left_early;
      });
    }
    for (std::thread& consumer : consumers) consumer.join();
    CHECK(is_each_once(order, wanted.size()));
    CHECK(left_early == 0);
    CHECK(wanted.is_all_right());
  }
}

TEST_CASE("background: tensors are added while it runs") {
  for (const fake::Mode mode : kModes) {
    const FakeDriver driver(mode, 10);
    const Config config({.chunk_nbytes = 4096});
    Wanted wanted(std::make_shared<MemorySource>(200'000));
    wanted.add_all(3000);
    const std::vector<LoadTensor> tensors = wanted.tensors();
    Load load(fake_device(), wanted.sources(), {.threads = 3});
    load.start();
    std::vector<Load::Index> order;
    for (std::size_t i = 0; i < tensors.size(); i += 4) {
      const std::size_t count = std::min<std::size_t>(4, tensors.size() - i);
      CHECK(load.add(std::span(tensors).subspan(i, count)) == i);
      if (i % 8 == 0) continue;
      // Readers must not hold copies back while they wait for more tensors.
      for (const Load::Index tensor : take_all(load, wanted)) order.push_back(tensor);
      CHECK(order.size() == i + count);
    }
    load.finish();
    for (const Load::Index tensor : take_all(load, wanted)) order.push_back(tensor);
    CHECK(is_each_once(order, wanted.size()));
    load.wait(deadline());
  }
}

TEST_CASE("background: tensors added first are read before those that wait") {
  const FakeDriver driver(fake::kEager);
  const Config config({.chunk_nbytes = 4096, .slots = 1});
  const auto source = std::make_shared<MemorySource>(100 * 4096);
  std::promise<void> reading;
  std::promise<void> may_go_on;
  std::once_flag once;
  source->on_read = [&] {
    std::call_once(once, [&] {
      reading.set_value();
      may_go_on.get_future().wait();
    });
  };
  Wanted wanted(source);
  wanted.add_all(4096);
  const std::vector<LoadTensor> tensors = wanted.tensors();
  Load load(fake_device(), wanted.sources(), {.threads = 1});
  load.add(std::span(tensors).first(99));
  load.start();
  reading.get_future().wait();
  const Load::Index urgent = load.add(std::span(tensors).last(1), nullptr, true);
  CHECK(urgent == 99);
  load.finish();
  may_go_on.set_value();
  const std::vector<Load::Index> order = take_all(load, wanted);
  REQUIRE(is_each_once(order, 100));
  CHECK(order[1] == urgent);
}

TEST_CASE("background: an addition that is refused leaves nothing behind") {
  const FakeDriver driver(fake::kEager);
  Wanted wanted(std::make_shared<MemorySource>(10'000));
  wanted.add_all(1000);
  const std::vector<LoadTensor> tensors = wanted.tensors();
  Load load(fake_device(), wanted.sources(), {.threads = 2});
  CHECK(load.add(std::span(tensors).first(5)) == 0);
  fakecuda_capturing(0, 1);
  CHECK(outcome_of([&] { load.add(tensors); }) == "kInvalidArgument");
  fakecuda_capturing(0, 0);
  fakecuda_fault("cuEventRecord", 1, 2);
  CHECK(outcome_of([&] { load.add(tensors); }) == "kDevice");
  CHECK(load.add(std::span(tensors).last(5)) == 5);
  load.finish();
  CHECK(is_each_once(take_all(load, wanted), 10));
  load.wait(deadline());
  CHECK(load.done_nbytes() == 10'000);
}

TEST_CASE("background: stopped from another thread, it writes nothing any more") {
  for (const fake::Mode mode : kModes) {
    const FakeDriver driver(mode, 200);
    const Config config({.chunk_nbytes = 4096});
    const auto source = std::make_shared<MemorySource>(1000 * 4096);
    source->delay = 1ms;
    Wanted wanted(source);
    wanted.add_all(3 * 4096);
    Load load(fake_device(), wanted.sources(), {.threads = 2});
    load.add(wanted.tensors());
    load.finish();
    load.start();
    CHECK(load.wait_for(0, deadline()));
    std::thread other([&] {
      std::this_thread::sleep_for(5ms);
      load.stop();
      // Tensors that are ready stay ready, and only they are complete.
      wanted.poison();
      fakecuda_run();
      CHECK(wanted.is_poisoned());
    });
    const bool is_loaded = load.wait_for(static_cast<Load::Index>(wanted.size() - 1), deadline());
    other.join();
    CHECK_FALSE(is_loaded);
    CHECK(load.wait_for(0, deadline()));
    std::size_t handed_out = 0;
    while (load.next_ready(deadline())) ++handed_out;
    CHECK(handed_out >= 1);
    CHECK(handed_out < wanted.size());
    CHECK(load.done_nbytes() < wanted.nbytes());
    load.stop();  // again
    CHECK(fakecuda_pending(0) == 0);
  }
}

TEST_CASE("background: a load destroyed midway leaves no copy in flight") {
  for (const fake::Mode mode : kModes) {
    const FakeDriver driver(mode, 200);
    const Config config({.chunk_nbytes = 4096});
    const auto source = std::make_shared<MemorySource>(400 * 4096);
    source->delay = 200us;
    Wanted wanted(source);
    wanted.add_all(4096);
    {
      Load load(fake_device(), wanted.sources(), {.threads = 2});
      load.add(wanted.tensors());
      load.start();
      CHECK(load.next_ready(deadline()));
    }
    wanted.poison();
    fakecuda_run();
    CHECK(wanted.is_poisoned());
    CHECK(driver.events_left() == 0);
    {
      const Load never_used(fake_device(), wanted.sources());
      Load never_started(fake_device(), wanted.sources());
      never_started.add(wanted.tensors());
    }
    CHECK(wanted.is_poisoned());
    CHECK(driver.events_left() == 0);
  }
}
