#include "write/save_memory.hpp"

#include <algorithm>
#include <utility>

#include "base/per_process.hpp"

namespace safetensors {
namespace {

constinit PerProcess<SaveMemory> memories;

}  // namespace

SaveMemory& SaveMemory::get() { return memories.get(); }

std::uint64_t SaveMemory::default_budget() {
  const std::uint64_t available = memory_available();
  const std::lock_guard lock(mutex);
  return available / 4 + (used_ + idle_.size()) * kChunkSize / 4;
}

std::size_t SaveMemory::allowed(std::uint64_t budget) const noexcept {
  const auto count = static_cast<std::size_t>(budget / kChunkSize);
  if (used_ == 0) return std::max<std::size_t>(count, 1);
  return count > used_ ? count - used_ : 0;
}

Buffer SaveMemory::take() {
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

void SaveMemory::give_back(Buffer chunk) {
  const std::lock_guard lock(mutex);
  --used_;
  idle_.push_back(std::move(chunk));
  changed.notify_all();
}

std::size_t SaveMemory::release() {
  std::vector<Buffer> freed;
  const std::lock_guard lock(mutex);
  freed.swap(idle_);
  return freed.size() * kChunkSize;
}

SaveMemoryUse SaveMemory::use() {
  const std::lock_guard lock(mutex);
  return {.used_nbytes = used_ * kChunkSize, .kept_nbytes = idle_.size() * kChunkSize};
}

}  // namespace safetensors
