#include "io/new_memory.hpp"

#if defined(__linux__)
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "io/system.hpp"

#if !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

namespace safetensors::io {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWorthACall = std::size_t{256} << 10;
// 512 small pages take 0.25 to 0.5 ms. A huge page takes 0.1 ms if the kernel has one at hand.
// Otherwise it takes 2 ms and more: the kernel moves other memory to make one, or the host of a
// virtual machine took the page back while it was free, as hosts do with free memory in large
// blocks only.
constexpr std::chrono::microseconds kSlowHugePage{500};
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

void advise_huge(std::span<std::byte> pages) noexcept {
  if (!pages.empty()) (void)::madvise(pages.data(), pages.size(), MADV_HUGEPAGE);
}

void populate(std::span<std::byte> pages) noexcept {
  // An error is met again, and reported, by what fills the memory.
  (void)::madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE);
}

/// Provides one huge page, and returns whether it came quickly. Returns false, and provides
/// nothing, if one came slowly a moment ago.
bool provide_huge(std::span<std::byte> page) noexcept {
  const Clock::time_point begin = Clock::now();
  if (begin.time_since_epoch().count() < back_off_until.load(std::memory_order_relaxed)) {
    return false;
  }
  advise_huge(page);
  populate(page);
  const Clock::time_point end = Clock::now();
  if (end - begin <= kSlowHugePage) return true;
  back_off_until.store((end + kBackOff).time_since_epoch().count(), std::memory_order_relaxed);
  return false;
}

}  // namespace

void provide_pages(std::span<std::byte> memory) noexcept {
  if (memory.size() < kWorthACall) return;
  const std::span<std::byte> pages = whole_pages(memory, page_size());
  unsigned char exists = 0;
  if (::mincore(pages.data(), page_size(), &exists) != 0 || (exists & 1) != 0) return;
  const std::span<std::byte> huge = whole_pages(memory, kHugePage);
  if (!huge.empty() && provide_huge(huge.first(kHugePage))) advise_huge(huge.subspan(kHugePage));
  populate(pages);
}

}  // namespace safetensors::io

#else

namespace safetensors::io {
void provide_pages(std::span<std::byte> /*memory*/) noexcept {}
}  // namespace safetensors::io

#endif
