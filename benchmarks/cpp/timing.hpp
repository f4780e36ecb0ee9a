// What the timing programs share.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
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

/// Arguments that do not fit the usage.
struct BadArguments : std::runtime_error {
  explicit BadArguments(const char* why = "these arguments do not fit") : runtime_error(why) {}
};

/// The main() of a program, which calls `run` with the arguments. Returns its exit status.
template <typename Run>
int run_program(int argc, char** argv, const char* usage, const Run& run) {
  try {
    run(std::vector<std::string>(argv + 1, argv + argc));
    return EXIT_SUCCESS;
  } catch (const BadArguments& error) {
    (void)std::fprintf(stderr, "%s: %s\n%s", argv[0], error.what(), usage);
    return 2;
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return EXIT_FAILURE;
  }
}

/// A positive number from the command line.
inline std::optional<std::size_t> count_from(std::string_view text) {
  std::size_t count = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || stop != end || count == 0) return std::nullopt;
  return count;
}

/// The numbers after the first argument, of which the last ones may be absent.
template <std::size_t n>
std::array<std::size_t, n> counts_after_first(const std::vector<std::string>& args,
                                              std::array<std::size_t, n> counts) {
  if (args.empty() || args.size() > n + 1) throw BadArguments();
  for (std::size_t i = 1; i < args.size(); ++i) {
    const std::optional<std::size_t> count = count_from(args[i]);
    if (!count) throw BadArguments();
    counts[i - 1] = *count;
  }
  return counts;
}

}  // namespace bench
