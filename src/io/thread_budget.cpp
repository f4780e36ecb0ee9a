#include "io/thread_budget.hpp"

#include <algorithm>
#include <mutex>

#include "base/per_process.hpp"

namespace safetensors::io {
namespace {

struct Budget {
  std::mutex mutex;
  unsigned used = 0;
};

constinit PerProcess<Budget> budget;  // a forked process has none of its parent's threads

}  // namespace

unsigned acquire_threads(unsigned wanted) {
  Budget& all = budget.get();
  const std::lock_guard lock(all.mutex);
  const unsigned left = kMaxLoadThreads - std::min(kMaxLoadThreads, all.used);
  const unsigned count = std::max(1U, std::min(wanted, left));
  all.used += count;
  return count;
}

void release_threads(unsigned count) {
  Budget& all = budget.get();
  const std::lock_guard lock(all.mutex);
  all.used -= std::min(all.used, count);
}

}  // namespace safetensors::io
