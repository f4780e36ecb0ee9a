#include "io/new_memory.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>

#include "io/system.hpp"

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

namespace safetensors::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWorthACall = std::size_t{256} << 10;
// 512 small pages take 0.7 to 1.3 ms. A huge page takes 0.1 to 0.4 ms if the kernel has one at
// hand. Otherwise it takes 2 ms and more: the kernel moves other memory to make one, or the host of
// a virtual machine took the page back while it was free, as hosts do with free memory in large
// blocks only. The clock also has the time in which threads wait for each other within madvise(),
// and for a processor; the thread's time may lack that of the host.
constexpr std::chrono::milliseconds kSlowByThread{1};
constexpr std::chrono::milliseconds kSlowByClock{4};
constexpr std::chrono::seconds kBackOff{1};

/// The time until which no huge pages are asked for, as slow ones came a moment ago.
constinit std::atomic<Clock::rep> back_off_until{0};

/// Returns the pages of this size that are wholly within `memory`.
std::span<std::byte> whole_pages(std::span<std::byte> memory, std::size_t page) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t before = std::min((page - address % page) % page, memory.size());
  const std::span<std::byte> rest = memory.subspan(before);
  return rest.first(rest.size() / page * page);
}

void populate(std::span<std::byte> pages) noexcept {
  // An error is met again, and reported, by what fills the memory.
  (void)::madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE);
}

/// Returns how long this thread has run; zero if the system does not say.
std::chrono::nanoseconds thread_time() noexcept {
  timespec time{};
  if (::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return {};
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// Provides huge pages until one comes slowly. Provides none if one came slowly a moment ago.
void provide_quick_huge(std::span<std::byte> pages) noexcept {
  if (pages.empty()) return;
  Clock::time_point clock = Clock::now();
  if (clock.time_since_epoch().count() < back_off_until.load(std::memory_order_relaxed)) return;
  std::chrono::nanoseconds thread = thread_time();
  for (; !pages.empty(); pages = pages.subspan(kHugePage)) {
    (void)::madvise(pages.data(), kHugePage, MADV_HUGEPAGE);
    populate(pages.first(kHugePage));
    const auto clock_before = std::exchange(clock, Clock::now());
    const auto thread_before = std::exchange(thread, thread_time());
    if (clock - clock_before > kSlowByClock || thread - thread_before > kSlowByThread) {
      const Clock::time_point until = clock + kBackOff;
      back_off_until.store(until.time_since_epoch().count(), std::memory_order_relaxed);
      return;
    }
  }
}

}  // namespace

void provide_pages(std::span<std::byte> memory) noexcept {
  if (memory.size() < kWorthACall) return;
  const std::span<std::byte> pages = whole_pages(memory, page_size());
  unsigned char exists = 0;
  if (::mincore(pages.data(), page_size(), &exists) != 0 || (exists & 1) != 0) return;
  provide_quick_huge(whole_pages(memory, kHugePage));
  populate(pages);
}

}  // namespace safetensors::io

#else

namespace safetensors::io {
void provide_pages(std::span<std::byte> /*memory*/) noexcept {}
}  // namespace safetensors::io

#endif
