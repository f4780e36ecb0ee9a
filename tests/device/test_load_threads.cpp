// Loads where the system starts no thread, or fewer than wanted.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "load_support.hpp"
#include "safetensors/model.hpp"
#include "sharded_model.hpp"

#if !defined(TEST_SANITIZED)  // sanitizers replace pthread_create themselves

namespace {

/// How many more threads can be started; below 0: no limit.
std::atomic<int> threads_left{-1};
std::atomic<int> refused{0};

}  // namespace

/// Replaces the C library's function for this program.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) {
  if (threads_left >= 0 && threads_left-- <= 0) {
    threads_left = 0;
    ++refused;
    return EAGAIN;
  }
  const auto next =
      reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, work, argument);
}

namespace {

using safetensors::Device;
using safetensors::Load;
using test::Config;
using test::deadline;
using test::fake_device;
using test::FakeDriver;
using test::MemorySource;
using test::Wanted;

/// While it lives, only this many more threads can be started.
class ThreadLimit {
 public:
  explicit ThreadLimit(int left) {
    refused = 0;
    threads_left = left;
  }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;
  ~ThreadLimit() { threads_left = -1; }
};

}  // namespace

TEST_CASE("threads: a load goes on with fewer threads, or on the calling thread") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  for (const bool is_host : {false, true}) {
    for (const int left : {0, 1, 3}) {
      Wanted wanted(std::make_shared<MemorySource>(200'000));
      wanted.add_all(7000);
      for (const bool is_started : {false, true}) {
        wanted.poison();
        const ThreadLimit limit(left);
        Load load(is_host ? Device() : fake_device(), wanted.sources(), {.threads = 6});
        load.add(wanted.tensors());
        load.finish();
        if (is_started) load.start();
        load.wait(deadline());
        CHECK(refused > 0);
        CHECK(load.thread_count() == static_cast<unsigned>(left));
        CHECK(wanted.is_all_right());
      }
    }
  }
}

TEST_CASE("threads: without one, a model opens all its files on the calling thread") {
  const test::Sharded files(true);
  const test::fs::path index = files.path() / test::kIndexName;
  test::write_text(index, test::padded(test::read_text(index)));
  const ThreadLimit limit(0);
  std::size_t opened = 0;
  const auto self = std::this_thread::get_id();
  const auto opener = [&](const test::fs::path& path) {
    CHECK(std::this_thread::get_id() == self);
    ++opened;
    return safetensors::SafeOpen(path);
  };
  const auto model = safetensors::open_model(index, {.opener = opener, .opens_all = true});
  CHECK(opened == 3);
  CHECK((refused > 0 || std::thread::hardware_concurrency() < 2));
  for (const auto& [name, place] : files.by_name()) {
    CHECK(test::same(model.get_tensor(name), *place.second));
  }
}

TEST_CASE("threads: without one, the calling thread loads the tensor that it waits for") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  for (const bool is_host : {false, true}) {
    Wanted wanted(std::make_shared<MemorySource>(200'000));
    wanted.add_all(7000);
    Load load(is_host ? Device() : fake_device(), wanted.sources(), {.threads = 4});
    const std::size_t count = wanted.tensors().size();
    load.add(wanted.tensors());
    {
      const ThreadLimit limit(0);
      CHECK(load.wait_for(3, deadline()));
      CHECK(wanted.is_right(3));
      CHECK(load.done_nbytes() < load.total_nbytes());
      CHECK(load.thread_count() == 0);
      std::size_t found = 0;
      while (load.next_ready(deadline())) ++found;  // finish() was not called yet
      CHECK(found == count);
      CHECK(wanted.is_all_right());
      CHECK(refused > 0);
    }
    load.finish();
    load.wait(deadline());  // once threads can be started
  }
}

TEST_CASE("threads: what interrupts a wait without threads does not end the load") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  const auto source = std::make_shared<MemorySource>(200'000);
  source->delay = std::chrono::milliseconds(5);  // so that a wait polls before all is loaded
  Wanted wanted(source);
  wanted.add_all(7000);
  Load load(fake_device(), wanted.sources(), {.threads = 4});
  load.add(wanted.tensors());
  load.finish();
  const ThreadLimit limit(0);
  const auto last = static_cast<Load::Index>(wanted.tensors().size() - 1);
  CHECK_THROWS_AS((void)load.wait_for(last, [] { throw std::runtime_error("Ctrl-C"); }),
                  std::runtime_error);
  CHECK_FALSE(load.is_stopped());
  CHECK(load.wait_for(last, deadline()));
  // An interrupt may stop the load, of which this thread is a reader.
  wanted.poison();
  Load stopped(fake_device(), wanted.sources(), {.threads = 4});
  stopped.add(wanted.tensors());
  stopped.finish();
  CHECK_FALSE(stopped.wait_for(last, [&] { stopped.stop(); }));
}

TEST_CASE("threads: several threads wait for a load without threads of its own") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  for (const bool is_host : {false, true}) {
    Wanted wanted(std::make_shared<MemorySource>(2'000'000));
    wanted.add_all(7000);
    Load load(is_host ? Device() : fake_device(), wanted.sources(), {.threads = 4});
    load.add(wanted.tensors());
    const std::size_t count = wanted.tensors().size();
    std::atomic<std::size_t> found{0};
    std::atomic<bool> is_limited{false};
    std::vector<std::thread> waiting;
    for (int i = 0; i < 3; ++i) {
      waiting.emplace_back([&] {
        while (!is_limited) std::this_thread::yield();
        while (load.next_ready(deadline())) ++found;
      });
    }
    {
      const ThreadLimit limit(0);
      is_limited = true;
      for (std::thread& each : waiting) each.join();
    }
    CHECK(found == count);
    CHECK(wanted.is_all_right());
  }
}

TEST_CASE("threads: those that were not started are not counted") {
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  Wanted wanted(std::make_shared<MemorySource>(200'000));
  wanted.add_all(7000);
  // Tries more often than the process-wide limit.
  for (int i = 0; i < 40; ++i) {
    const ThreadLimit limit(0);
    Load refused_load(fake_device(), wanted.sources(), {.threads = 32});
    refused_load.add(wanted.tensors());
    refused_load.start();
  }
  Load last(fake_device(), wanted.sources(), {.threads = 8});
  last.add(wanted.tensors());
  last.start();
  CHECK(last.thread_count() == 8);
}

#else

TEST_CASE("threads: not tested under sanitizers") { CHECK(true); }

#endif
