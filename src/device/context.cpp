#include "device/context.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <utility>

#include "base/per_process.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

struct All {
  std::mutex mutex;
  std::map<std::pair<const CudaDriver*, int>, std::unique_ptr<Context>> contexts;
};

constinit PerProcess<All> contexts;

constexpr std::uint64_t kNotUsed = UINT64_MAX;
constinit std::atomic<std::uint64_t> first_use{kNotUsed};  // of any device: the generation

void check_generation(std::uint64_t generation, int index) {
  if (generation == fork_generation()) return;
  fail(ErrorCode::kDevice, "device " + std::to_string(index) +
                               " cannot be used: this process was forked from one that used a "
                               "device (start it by the spawn method instead)");
}

}  // namespace

Context::Context(const CudaDriver& driver, int index)
    : driver_(driver),
      index_(index),
      generation_(fork_generation()),
      handle_(driver.open(index)),
      properties_(driver.properties(index)) {}

bool Context::is_own() const noexcept { return generation_ == fork_generation(); }

void Context::check_process() const { check_generation(generation_, index_); }

Context& Context::of(const CudaDriver& driver, int index) {
  std::uint64_t used_in = kNotUsed;
  if (!first_use.compare_exchange_strong(used_in, fork_generation())) {
    check_generation(used_in, index);
  }
  All& all = contexts.get();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Context>& context = all.contexts[{&driver, index}];
  if (!context) context = std::make_unique<Context>(driver, index);
  return *context;
}

Stream Context::stream(unsigned reader, unsigned count) {
  const std::lock_guard lock(mutex_);
  const unsigned wanted = reader % count;
  while (streams_.size() <= wanted) streams_.push_back(driver_.make_stream());
  return streams_[wanted];
}

}  // namespace safetensors::device
