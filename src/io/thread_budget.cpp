#include "io/thread_budget.hpp"

#include <algorithm>
#include <mutex>

#include "base/per_process.hpp"

namespace safetensors::io {
namespace {

struct Tokens {
  std::mutex mutex;
  unsigned taken = 0;
};

constinit PerProcess<Tokens> tokens;  // a forked process has none of its parent's threads

}  // namespace

unsigned acquire_threads(unsigned wanted) {
  Tokens& all = tokens.get();
  const std::lock_guard lock(all.mutex);
  const unsigned left = kMaxLoadThreads - std::min(kMaxLoadThreads, all.taken);
  const unsigned count = std::max(1U, std::min(wanted, left));
  all.taken += count;
  return count;
}

void release_threads(unsigned count) {
  Tokens& all = tokens.get();
  const std::lock_guard lock(all.mutex);
  all.taken -= std::min(all.taken, count);
}

}  // namespace safetensors::io
