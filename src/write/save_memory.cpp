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

std::size_t SaveMemory::reserve(std::uint64_t budget, std::size_t most) noexcept {
  std::size_t count = static_cast<std::size_t>(budget / kChunkSize);
  if (used_ == 0) count = std::max<std::size_t>(count, 1);
  count = count > used_ ? std::min(count - used_, most) : 0;
  used_ += count;
  return count;
}

void SaveMemory::unreserve(std::size_t count) {
  const std::lock_guard lock(mutex);
  used_ -= count;
  changed.notify_all();
}

Buffer SaveMemory::take() {
  {
    const std::lock_guard lock(mutex);
    if (!idle_.empty()) {
      Buffer chunk = std::move(idle_.back());
      idle_.pop_back();
      return chunk;
    }
  }
  return Buffer(kChunkSize);
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
