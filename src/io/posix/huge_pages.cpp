#include "io/posix/huge_pages.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "base/parse_integer.hpp"
#include "io/posix/procfs.hpp"
#include "io/system.hpp"

namespace safetensors::io {
namespace {

using Clock = std::chrono::steady_clock;

// How long a count is used: what was taken since is subtracted, but not what others take or free.
constexpr std::chrono::milliseconds kFresh{100};
// The kernel keeps some free memory for itself.
constexpr std::uint64_t kKeptShare = 8;

std::uint64_t count_now() noexcept {
#if defined(__linux__)
  try {
    const std::optional<std::string> text = read_kernel_file("/proc/buddyinfo");
    if (!text) return 0;
    const std::uint64_t count = free_huge_pages(*text, page_size());
    return count - count / kKeptShare;
  } catch (const std::exception&) {  // no memory
    return 0;
  }
#else
  return 0;
#endif
}

}  // namespace

std::uint64_t free_huge_pages(std::string_view buddyinfo, std::size_t page_size) noexcept {
  std::uint64_t count = 0;
  while (!buddyinfo.empty()) {
    const std::size_t end = std::min(buddyinfo.find('\n'), buddyinfo.size());
    std::string_view line = buddyinfo.substr(0, end);
    buddyinfo.remove_prefix(std::min(end + 1, buddyinfo.size()));
    // "Node 0, zone   Normal   10247   5957 ..."
    for (int i = 0; i < 4; ++i) (void)next_token(line);
    std::size_t nbytes = page_size;
    for (std::string_view token = next_token(line); !token.empty(); token = next_token(line)) {
      const std::uint64_t blocks = parse_integer<std::uint64_t>(token).value_or(0);
      if (nbytes >= kHugePage) count += blocks * (nbytes / kHugePage);
      nbytes *= 2;
    }
  }
  return count;
}

std::uint64_t take_huge_pages(std::uint64_t wanted) noexcept {
  // Without a lock, which a forked child might find taken. Two threads that take at the time of a
  // new count may take some of the same pages: it is an estimate anyway.
  static constinit std::atomic<std::uint64_t> left{0};
  static constinit std::atomic<Clock::rep> next_count{0};
  Clock::rep due = next_count.load();
  const Clock::time_point now = Clock::now();
  if (now.time_since_epoch().count() >= due &&
      next_count.compare_exchange_strong(due, (now + kFresh).time_since_epoch().count())) {
    left = count_now();
  }
  std::uint64_t found = left.load();
  std::uint64_t taken = std::min(wanted, found);
  while (!left.compare_exchange_weak(found, found - taken)) taken = std::min(wanted, found);
  return taken;
}

}  // namespace safetensors::io
