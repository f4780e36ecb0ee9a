#include "io/process.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "io/posix/kernel_text.hpp"

namespace safetensors::io {
namespace {

std::atomic<std::uint64_t> generation{0};

/// Processors' worth of time that the group may use, rounded up; none when there is no limit.
std::optional<unsigned> quota() noexcept {
#if defined(__linux__)
  try {
    const std::optional<std::string> text = read_kernel_text("/sys/fs/cgroup/cpu.max");
    if (!text) return std::nullopt;
    std::string_view rest = *text;
    const auto time = number_of<std::uint64_t>(take_word(rest));  // "max" is no number
    const auto period = number_of<std::uint64_t>(take_word(rest));
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

std::uint64_t fork_generation() noexcept {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

unsigned processor_count() noexcept {
  static const unsigned count = [] {
    const unsigned allowed = std::max(1U, std::thread::hardware_concurrency());
    return std::min(allowed, quota().value_or(allowed));
  }();
  return count;
}

}  // namespace safetensors::io
