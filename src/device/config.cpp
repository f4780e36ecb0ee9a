// LoadConfig of the public header: defaults, limits, and the process's current settings.
#include <atomic>
#include <cstddef>
#include <string>

#include "io/environment.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/device.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// A copy of this size uses the full bandwidth of PCIe, and the two slots of a reader still fit into
// a processor's cache.
constexpr std::size_t kDefaultChunk = 4 * kMiB;
constexpr std::size_t kDefaultStaging = 128 * kMiB;
constexpr unsigned kDefaultStreams = 2;
constexpr unsigned kDefaultSlots = 2;

constexpr std::size_t kMaxChunk = std::size_t{1} << 30;
constexpr std::size_t kMaxStagingMb = std::size_t{1} << 20;  // one TiB
constexpr unsigned kMaxStreams = 64;
constexpr unsigned kMaxSlots = 64;

void check(const LoadConfig& config) {
  if (config.chunk_nbytes % ReadCost().alignment != 0 || config.chunk_nbytes > kMaxChunk) {
    fail(ErrorCode::kInvalidArgument,
         "the chunk size must be a multiple of 4096 bytes, at most 1 GiB");
  }
  const auto check_count = [](const char* what, unsigned count, unsigned most) {
    if (count <= most) return;
    fail(ErrorCode::kInvalidArgument,
         std::string(what) + " must be at most " + std::to_string(most));
  };
  check_count("threads", config.threads, LoadConfig::kMaxThreads);
  check_count("streams", config.streams, kMaxStreams);
  check_count("slots", config.slots, kMaxSlots);
}

LoadConfig with_defaults(LoadConfig config) noexcept {
  if (config.chunk_nbytes == 0) config.chunk_nbytes = kDefaultChunk;
  if (config.staging_nbytes == 0) config.staging_nbytes = kDefaultStaging;
  if (config.streams == 0) config.streams = kDefaultStreams;
  if (config.slots == 0) config.slots = kDefaultSlots;
  return config;
}

/// Throws: Error kInvalidArgument, naming the variable.
LoadConfig from_environment() {
  const auto number = [](const char* variable, std::size_t max) {
    return static_cast<std::size_t>(io::env_uint(variable, max).value_or(0));
  };
  LoadConfig config;
  config.threads = static_cast<unsigned>(number("SAFETENSORS_IO_THREADS", LoadConfig::kMaxThreads));
  config.chunk_nbytes = number("SAFETENSORS_IO_CHUNK_MB", kMaxChunk / kMiB) * kMiB;
  config.staging_nbytes = number("SAFETENSORS_STAGING_MB", kMaxStagingMb) * kMiB;
  return config;
}

/// Settings that are or were in use. Never changed and never freed, as another thread may be
/// reading them.
struct Setting {
  LoadConfig config;
  const Setting* before;
};

// Atomic pointers instead of a mutex or a local static: a fork could copy those while locked.
constinit std::atomic<const Setting*> all{nullptr};  // a list that only grows
constinit std::atomic<const Setting*> current{nullptr};

/// Returns the setting with these values. Equal values share one, so that a program that changes
/// its settings back and forth does not leak memory.
const Setting* setting_of(const LoadConfig& config) {
  const Setting* const last = all.load(std::memory_order_acquire);
  for (const Setting* each = last; each != nullptr; each = each->before) {
    if (each->config == config) return each;
  }
  auto* const added = new Setting{config, last};
  while (!all.compare_exchange_weak(added->before, added)) {
  }
  return added;
}

}  // namespace

LoadConfig load_config() {
  const Setting* found = current.load(std::memory_order_acquire);
  if (found == nullptr) {
    // Several threads may come here; all use the result of the first that stores one.
    const Setting* const first = setting_of(with_defaults(from_environment()));
    if (current.compare_exchange_strong(found, first)) found = first;
  }
  return found->config;
}

void set_load_config(const LoadConfig& config) {
  check(config);
  current.store(setting_of(with_defaults(config)), std::memory_order_release);
}

}  // namespace safetensors
