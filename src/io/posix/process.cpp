#include "io/process.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "io/posix/procfs.hpp"

namespace safetensors::io {
namespace {

/// Processors' worth of time that the group may use, rounded up; none when there is no limit.
std::optional<unsigned> quota() noexcept {
#if defined(__linux__)
  try {
    const std::optional<std::string> text = read_kernel_file("/sys/fs/cgroup/cpu.max");
    if (!text) return std::nullopt;
    std::string_view rest = *text;
    const auto time = parse_uint<std::uint64_t>(next_token(rest));  // "max" is no number
    const auto period = parse_uint<std::uint64_t>(next_token(rest));
    if (!time || !period || *period == 0) return std::nullopt;
    return static_cast<unsigned>(std::max<std::uint64_t>(1, (*time + *period - 1) / *period));
  } catch (const std::exception&) {
    return std::nullopt;
  }
#else
  return std::nullopt;
#endif
}

}  // namespace

unsigned processor_count() noexcept {
  static constinit std::atomic<unsigned> known{
      0};  // once asked for; no lock, as a fork copies those
  unsigned count = known.load(std::memory_order_relaxed);
  if (count == 0) {
    const unsigned allowed = std::max(1U, std::thread::hardware_concurrency());
    count = std::max(1U, std::min(allowed, quota().value_or(allowed)));
    known.store(count, std::memory_order_relaxed);
  }
  return count;
}

std::size_t page_size() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

bool copy_on_fork(std::span<std::byte> pages, bool is_copied) noexcept {
#if defined(MADV_DONTFORK)
  return ::madvise(pages.data(), pages.size(), is_copied ? MADV_DOFORK : MADV_DONTFORK) == 0;
#else
  (void)pages;
  return is_copied;
#endif
}

}  // namespace safetensors::io
