#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/made_once.hpp"

using safetensors::MadeOnce;

TEST_CASE("a value is made by the first call, and destroyed with its owner") {
  const auto watched = std::make_shared<int>(7);
  {
    const MadeOnce<std::shared_ptr<int>> value;
    const auto& first = value.get([&] { return watched; });
    CHECK(&value.get([] { return std::make_shared<int>(8); }) == &first);
    CHECK(*first == 7);
    CHECK(watched.use_count() == 2);
  }
  CHECK(watched.use_count() == 1);
}

TEST_CASE("threads get one value") {
  constexpr int kThreads = 8;
  for (int run = 0; run < 50; ++run) {
    const MadeOnce<int> value;
    std::vector<const int*> found(kThreads);
    std::atomic<int> waiting{kThreads};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        for (--waiting; waiting > 0;) std::this_thread::yield();
        found[static_cast<std::size_t>(i)] = &value.get([i] { return i; });
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(std::set(found.begin(), found.end()).size() == 1);
  }
}
