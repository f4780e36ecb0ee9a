#include "staging_arena.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

namespace safetensors::python {
namespace {

// Never destroyed: threads may use it until the process ends.
constinit std::atomic<StagingArena*> current_arena{nullptr};

}  // namespace

StagingArena& StagingArena::get() {
  StagingArena* found = current_arena.load();
  if (found != nullptr) return *found;
  auto* const fresh = new StagingArena;
  if (current_arena.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;  // another thread was faster
  return *found;
}

void StagingArena::renew() { current_arena = nullptr; }

std::uint64_t StagingArena::default_budget() {
  const std::uint64_t available = memory_available();
  const std::lock_guard lock(mutex);
  return available / 4 + (used_ + idle_.size()) * kChunkSize / 4;
}

std::size_t StagingArena::allowed(std::uint64_t budget) const noexcept {
  const auto count = static_cast<std::size_t>(budget / kChunkSize);
  if (used_ == 0) return std::max<std::size_t>(count, 1);
  return count > used_ ? count - used_ : 0;
}

Buffer StagingArena::take() {
  {
    const std::lock_guard lock(mutex);
    ++used_;
    if (!idle_.empty()) {
      Buffer chunk = std::move(idle_.back());
      idle_.pop_back();
      return chunk;
    }
  }
  try {
    return Buffer(kChunkSize);
  } catch (...) {
    const std::lock_guard lock(mutex);
    --used_;
    throw;
  }
}

void StagingArena::give_back(Buffer chunk) {
  const std::lock_guard lock(mutex);
  --used_;
  idle_.push_back(std::move(chunk));
  changed.notify_all();
}

std::size_t StagingArena::release() {
  std::vector<Buffer> freed;
  const std::lock_guard lock(mutex);
  freed.swap(idle_);
  return freed.size() * kChunkSize;
}

std::pair<std::size_t, std::size_t> StagingArena::state() {
  const std::lock_guard lock(mutex);
  return {used_ * kChunkSize, idle_.size() * kChunkSize};
}

}  // namespace safetensors::python
