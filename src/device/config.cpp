#include <atomic>

#include "device/read_plan.hpp"
#include "io/environment.hpp"
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

void check(const LoadConfig& config) {
  const auto refuse = [](const char* what) { fail(ErrorCode::kInvalidArgument, what); };
  if (config.chunk_nbytes % device::kReadAlignment != 0 || config.chunk_nbytes > kMostChunk) {
    refuse("the chunk size must be a multiple of 4096 bytes, at most 1 GiB");
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

/// Throws Error kInvalidArgument, naming the variable.
LoadConfig from_environment() {
  const auto number = [](const char* variable, std::size_t max) {
    return static_cast<std::size_t>(io::env_uint(variable, max).value_or(0));
  };
  constexpr std::size_t kMaxStagingMb = std::size_t{1} << 20;  // a terabyte
  LoadConfig config;
  config.threads = static_cast<unsigned>(number("SAFETENSORS_IO_THREADS", kMostThreads));
  config.chunk_nbytes = number("SAFETENSORS_IO_CHUNK_MB", kMostChunk / kMiB) * kMiB;
  config.staging_nbytes = number("SAFETENSORS_STAGING_MB", kMaxStagingMb) * kMiB;
  return config;
}

/// Settings that hold or held. Never changed and never freed: a load may be reading them.
struct Setting {
  LoadConfig config;
  const Setting* before;
};

// No lock and no local static: a fork could copy them locked.
constinit std::atomic<const Setting*> all{nullptr};  // a list that is only added to
constinit std::atomic<const Setting*> current{nullptr};

/// The setting with these values: there are as many as differ, however often they change.
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
    const Setting* const first = setting_of(filled(from_environment()));
    if (current.compare_exchange_strong(found, first)) found = first;
  }
  return found->config;
}

void set_load_config(const LoadConfig& config) {
  check(config);
  current.store(setting_of(filled(config)), std::memory_order_release);
}

}  // namespace safetensors
