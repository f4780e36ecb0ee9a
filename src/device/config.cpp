#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "io/read_plan.hpp"
#include "safetensors/device.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Large enough for a link at full speed, small enough for two of each reader in the processor's
// cache.
constexpr std::size_t kChunk = 4 * kMiB;
constexpr std::size_t kStaging = 128 * kMiB;
constexpr unsigned kStreams = 2;
constexpr unsigned kSlots = 2;

constexpr std::size_t kMostChunk = std::size_t{1} << 30;
constexpr unsigned kMostThreads = 256;
constexpr unsigned kMostSlots = 64;

/// A variable of the environment that is a number; 0 when it is none.
std::size_t number_from(const char* variable) {
  const char* const text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): once
  if (text == nullptr) return 0;
  const std::string_view digits = text;
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_whole = error == std::errc() && end == digits.data() + digits.size();
  constexpr std::size_t kMost = std::size_t{1} << 20;  // megabytes: a terabyte
  return is_whole && number <= kMost ? number : 0;
}

void check(const LoadConfig& config) {
  const auto refuse = [](const char* what) { fail(ErrorCode::kInvalidArgument, what); };
  if (config.chunk_nbytes % io::kReadAlignment != 0 || config.chunk_nbytes > kMostChunk) {
    refuse("chunk_nbytes must be a multiple of 4096, at most 1 GiB");
  }
  if (config.threads > kMostThreads) refuse("threads must be at most 256");
  if (config.streams > kMostSlots) refuse("streams must be at most 64");
  if (config.slots > kMostSlots) refuse("slots must be at most 64");
}

LoadConfig filled(LoadConfig config) noexcept {
  if (config.chunk_nbytes == 0) config.chunk_nbytes = kChunk;
  if (config.staging_nbytes == 0) config.staging_nbytes = kStaging;
  if (config.streams == 0) config.streams = kStreams;
  if (config.slots == 0) config.slots = kSlots;
  return config;
}

LoadConfig from_environment() {
  LoadConfig config;
  config.threads = static_cast<unsigned>(number_from("SAFETENSORS_IO_THREADS"));
  config.chunk_nbytes = number_from("SAFETENSORS_IO_CHUNK_MB") * kMiB;
  config.staging_nbytes = number_from("SAFETENSORS_STAGING_MB") * kMiB;
  try {
    check(config);
  } catch (const Error&) {  // a variable is no argument: nobody could catch what is wrong with it
    return {};
  }
  return config;
}

struct Current {
  std::mutex mutex;
  LoadConfig config = filled(from_environment());
};

Current& current() {
  static Current& all = *new Current();
  return all;
}

}  // namespace

LoadConfig load_config() {
  Current& all = current();
  const std::lock_guard lock(all.mutex);
  return all.config;
}

void set_load_config(const LoadConfig& config) {
  check(config);
  Current& all = current();
  const std::lock_guard lock(all.mutex);
  all.config = filled(config);
}

}  // namespace safetensors
