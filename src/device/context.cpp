#include "device/context.hpp"

#include <map>
#include <memory>
#include <utility>

#include "io/process.hpp"

namespace safetensors::device {
namespace {

void check_generation(std::uint64_t generation, int index) {
  if (generation == io::fork_generation()) return;
  fail(ErrorCode::kDevice, "device " + std::to_string(index) +
                               " cannot be used: this process was forked from one that used a "
                               "device (start it by the spawn method instead)");
}

}  // namespace

Context::Context(const Driver& driver, int index)
    : driver_(driver),
      index_(index),
      generation_(io::fork_generation()),
      handle_(driver.open(index)),
      facts_(driver.facts(index)) {}

void Context::check_process() const { check_generation(generation_, index_); }

Context& Context::of(const Driver& driver, int index) {
  struct All {
    std::mutex mutex;
    std::map<std::pair<const Driver*, int>, std::unique_ptr<Context>> contexts;
  };
  static All& all = *new All();
  // Before the lock, which may be a copy that nobody gives back.
  static const std::uint64_t first_use = io::fork_generation();
  check_generation(first_use, index);
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
