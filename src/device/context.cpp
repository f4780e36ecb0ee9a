#include "device/context.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/per_process.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

struct Contexts {
  std::mutex mutex;
  std::map<std::pair<const CudaDriver*, int>, std::unique_ptr<Context>> by_device;
};

constinit PerProcess<Contexts> contexts;

// The fork generation in which the first device was used: CUDA cannot be used in later ones.
constexpr std::uint64_t kNotUsed = UINT64_MAX;
constinit std::atomic<std::uint64_t> first_use{kNotUsed};

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
  Contexts& all = contexts.get();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Context>& context = all.by_device[{&driver, index}];
  if (!context) context = std::make_unique<Context>(driver, index);
  return *context;
}

Stream Context::stream(unsigned reader, unsigned count) {
  const std::lock_guard lock(mutex_);
  const unsigned wanted = reader % count;
  while (streams_.size() <= wanted) streams_.push_back(driver_.make_stream());
  return streams_[wanted];
}

RecordedEvent::RecordedEvent(Context& context, Stream stream) {
  context.check_process();
  const CudaDriver& driver = context.driver();
  const ScopedContext current(driver, context.handle());
  const ScopedRelaxedCapture relaxed(driver);
  if (driver.is_capturing(stream)) {
    fail(ErrorCode::kInvalidArgument,
         "nothing can be copied while the current stream is being captured into a graph");
  }
  const Event event = driver.make_event();
  try {
    driver.record(event, stream);
  } catch (...) {
    driver.destroy(event);
    throw;
  }
  context_ = &context;
  event_ = event;
}

RecordedEvent& RecordedEvent::operator=(RecordedEvent&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(event_, other.event_);
  return *this;
}

RecordedEvent::~RecordedEvent() {
  if (context_ == nullptr) return;
  try {
    const ScopedContext current(context_->driver(), context_->handle());
    context_->driver().destroy(event_);
  } catch (const Error&) {  // a device that died has taken its events with it
    return;
  }
}

}  // namespace safetensors::device
