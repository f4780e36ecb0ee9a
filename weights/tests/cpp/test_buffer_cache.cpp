// The cache of buffers.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "provider/buffer_cache.hpp"

using safetensors::weights::BufferCache;
using safetensors::weights::WeightBuffer;

namespace {

WeightBuffer buffer_of(std::size_t nbytes, bool is_view = false) {
  auto memory = std::make_shared<std::vector<std::byte>>(nbytes);
  const std::span<const std::byte> bytes(*memory);
  return {bytes, {nbytes, 0, 0}, is_view, std::move(memory)};
}

}  // namespace

TEST_CASE("a buffer is built once") {
  BufferCache cache(1000);
  int builds = 0;
  const auto build = [&] {
    ++builds;
    return buffer_of(10);
  };
  const WeightBuffer first = cache.get({1}, build);
  const WeightBuffer second = cache.get({1}, build);
  CHECK(builds == 1);
  CHECK(first.bytes().data() == second.bytes().data());
  CHECK(cache.get({1, 2}, build).bytes().data() != first.bytes().data());
  CHECK(cache.stats().hits == 1);
  CHECK(cache.stats().misses == 2);
  CHECK(cache.stats().bytes == 20);
  cache.clear();
  CHECK(cache.stats().entries == 0);
  CHECK(cache.stats().bytes == 0);
  CHECK(first.nbytes() == 10);
  (void)cache.get({1}, build);
  CHECK(builds == 3);
}

TEST_CASE("the least recently used buffers are evicted first, and views have no size") {
  BufferCache cache(30);
  const auto ask = [&](std::size_t key, bool is_view = false) {
    bool built = false;
    (void)cache.get({key}, [&] {
      built = true;
      return buffer_of(10, is_view);
    });
    return built;
  };
  for (const std::size_t key : {1U, 2U, 3U}) CHECK(ask(key));
  CHECK(ask(100, true));
  CHECK_FALSE(ask(1));
  CHECK(ask(4));  // evicts 2
  CHECK_FALSE(ask(1));
  CHECK_FALSE(ask(3));
  CHECK_FALSE(ask(4));
  CHECK_FALSE(ask(100, true));
  CHECK(ask(2));
  CHECK(cache.stats().bytes == 30);
  CHECK(cache.stats().evictions == 2);
}

TEST_CASE("a buffer larger than the cache is built each time") {
  BufferCache cache(5);
  int builds = 0;
  for (int i = 0; i < 3; ++i) {
    const WeightBuffer buffer = cache.get({1}, [&] {
      ++builds;
      return buffer_of(10);
    });
    CHECK(buffer.nbytes() == 10);
  }
  CHECK(builds == 3);
  CHECK(cache.stats().entries == 0);
}

TEST_CASE("a failed build is not cached") {
  BufferCache cache(100);
  const auto fails = []() -> WeightBuffer { throw std::runtime_error("no"); };
  CHECK_THROWS_AS((void)cache.get({1}, fails), std::runtime_error);
  CHECK(cache.get({1}, [] { return buffer_of(3); }).nbytes() == 3);
}

TEST_CASE("threads that ask at once share one build") {
  constexpr std::size_t kThreads = 8;
  constexpr std::size_t kKeys = 50;
  BufferCache cache(1 << 20);
  std::array<std::atomic<int>, kKeys> builds{};
  std::array<std::array<const std::byte*, kKeys>, kThreads> seen{};
  {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t k = 0; k < kKeys; ++k) {
          const WeightBuffer buffer = cache.get({k}, [&] {
            ++builds[k];
            std::this_thread::yield();
            return buffer_of(16);
          });
          seen[t][k] = buffer.bytes().data();
        }
      });
    }
    for (std::thread& each : threads) each.join();
  }
  for (std::size_t k = 0; k < kKeys; ++k) {
    CHECK(builds[k] == 1);
    for (std::size_t t = 0; t < kThreads; ++t) CHECK(seen[t][k] == seen[0][k]);
  }
}

TEST_CASE("clearing while others build loses nothing") {
  BufferCache cache(1 << 20);
  std::atomic<bool> stop{false};
  std::thread cleaner([&] {
    while (!stop) cache.clear();
  });
  {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::size_t i = 0; i < 2000; ++i) {
          if (cache.get({i % 7}, [] { return buffer_of(8); }).nbytes() != 8) std::abort();
        }
      });
    }
    for (std::thread& each : threads) each.join();
  }
  stop = true;
  cleaner.join();
}
