// Forked processes and the cache: a child does not have the threads that its parent waits for.
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "posix_support.hpp"
#include "provider/buffer_cache.hpp"

using safetensors::weights::BufferCache;
using safetensors::weights::WeightBuffer;

namespace {

/// A child that hangs ends by SIGALRM.
constexpr unsigned kPatienceSeconds = 20;

WeightBuffer buffer_of(std::size_t nbytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(nbytes);
  const std::span<const std::byte> bytes(*memory);
  return {bytes, {nbytes, 0, 0}, false, std::move(memory)};
}

/// A thread that is building the entry {1}, of 10 bytes, until it is allowed to finish.
class Builder {
 public:
  explicit Builder(BufferCache& cache)
      : thread_([this, &cache] {
          (void)cache.get({1}, [&] {
            building_.count_down();
            allowed_.wait();
            return buffer_of(10);
          });
        }) {
    building_.wait();
  }

  void finish() {
    allowed_.count_down();
    thread_.join();
  }

 private:
  std::latch building_{1};
  std::latch allowed_{1};
  std::thread thread_;
};

}  // namespace

TEST_CASE("a child builds the tensor that a thread of its parent is building") {
  BufferCache cache(1000);
  Builder builder(cache);
  const int status = test::in_child([&] {
    ::alarm(kPatienceSeconds);
    return cache.get({1}, [] { return buffer_of(20); }).nbytes() == 20 ? 0 : 1;
  });
  builder.finish();
  CHECK(status == 0);
  CHECK(cache.get({1}, [] { return buffer_of(30); }).nbytes() == 10);
}

TEST_CASE("a child does not wait for locks that its parent held") {
  BufferCache cache(1000);
  std::atomic<bool> stop{false};
  std::thread user([&] {
    while (!stop) (void)cache.stats();
  });
  int status = 0;
  for (int i = 0; i < 50 && status == 0; ++i) {
    status = test::in_child([&] {
      ::alarm(kPatienceSeconds);
      cache.clear();
      return cache.stats().entries == 0 ? 0 : 1;
    });
  }
  stop = true;
  user.join();
  CHECK(status == 0);
}

TEST_CASE("a build that forks is finished by both processes") {
  BufferCache cache(1000);
  pid_t child = -1;
  const WeightBuffer buffer = cache.get({1}, [&] {
    child = ::fork();
    if (child == 0) {
      ::alarm(kPatienceSeconds);
      (void)cache.get({1}, [] { return buffer_of(20); });
    }
    return buffer_of(10);
  });
  if (child == 0) {  // the outer build belongs to the parent's cache: only the inner one is kept
    ::_exit(buffer.nbytes() == 10 && cache.stats().entries == 1 && cache.stats().bytes == 20 ? 0
                                                                                             : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(buffer.nbytes() == 10);
  CHECK(cache.stats().bytes == 10);
}

TEST_CASE("a child can destroy a cache that its parent uses") {
  auto cache = std::make_unique<BufferCache>(1000);
  Builder builder(*cache);
  const int status = test::in_child([&] {
    ::alarm(kPatienceSeconds);
    cache.reset();
    return 0;
  });
  builder.finish();
  CHECK(status == 0);
  CHECK(cache->stats().bytes == 10);
}
