// What the timing programs share.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace bench {

/// Seconds that each of a number of runs took.
class Times {
 public:
  /// Calls `work`; what it returns is destroyed after the clock was read.
  template <typename Work>
  void run(Work&& work) {
    const auto begin = std::chrono::steady_clock::now();
    [[maybe_unused]] const auto result = work();
    const auto end = std::chrono::steady_clock::now();
    seconds_.push_back(std::chrono::duration<double>(end - begin).count());
  }

  [[nodiscard]] double first() const { return seconds_.front(); }
  [[nodiscard]] double min() const { return *std::ranges::min_element(seconds_); }
  [[nodiscard]] double mean() const {
    return std::reduce(seconds_.begin(), seconds_.end()) / static_cast<double>(seconds_.size());
  }
  [[nodiscard]] double median() const {
    std::vector<double> sorted = seconds_;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }

 private:
  std::vector<double> seconds_;
};

/// A positive number from the command line.
inline std::optional<std::size_t> count_from(std::string_view text) {
  std::size_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || stop != end || count == 0) return std::nullopt;
  return count;
}

}  // namespace bench
