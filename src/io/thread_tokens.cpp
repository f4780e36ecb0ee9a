#include "io/thread_tokens.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "io/process.hpp"

namespace safetensors::io {
namespace {

struct Tokens {
  std::mutex mutex;
  unsigned taken = 0;
  std::uint64_t generation = fork_generation();
};

/// Of this process: a forked one has none of its parent's threads, but copies of its locks.
Tokens& tokens() {
  static std::atomic<Tokens*> current{new Tokens()};
  Tokens* found = current.load(std::memory_order_acquire);
  if (found->generation == fork_generation()) return *found;
  auto* const fresh = new Tokens();  // the old one stays: its lock may be held for ever
  if (current.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

}  // namespace

unsigned take_threads(unsigned wanted) {
  Tokens& all = tokens();
  const std::lock_guard lock(all.mutex);
  const unsigned left = kMostLoadThreads - std::min(kMostLoadThreads, all.taken);
  const unsigned count = std::max(1U, std::min(wanted, left));
  all.taken += count;
  return count;
}

void give_threads(unsigned count) {
  Tokens& all = tokens();
  const std::lock_guard lock(all.mutex);
  all.taken -= std::min(all.taken, count);
}

}  // namespace safetensors::io
