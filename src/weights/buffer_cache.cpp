#include "weights/buffer_cache.hpp"

#include <exception>
#include <utility>

namespace safetensors::weights {

Buffer BufferCache::get(const Key& key, const std::function<Buffer()>& build) {
  std::promise<Buffer> promise;
  std::unique_lock lock(mutex_);
  const auto [found, is_new] = entries_.try_emplace(key);
  Entry& entry = found->second;
  if (!is_new) {
    ++stats_.hits;
    if (entry.used != used_.end()) used_.splice(used_.begin(), used_, entry.used);
    const std::shared_future<Buffer> buffer = entry.buffer;
    lock.unlock();
    return buffer.get();
  }
  ++stats_.misses;
  const std::uint64_t number = ++builds_;
  entry = {promise.get_future().share(), used_.end(), 0, number};
  lock.unlock();
  try {
    Buffer buffer = build();
    keep(key, number, buffer);
    promise.set_value(buffer);
    return buffer;
  } catch (...) {
    drop(key, number);
    promise.set_exception(std::current_exception());
    throw;
  }
}

void BufferCache::keep(const Key& key, std::uint64_t build, const Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.build != build) return;
  used_.push_front(key);
  found->second.used = used_.begin();
  found->second.nbytes = buffer.is_view() ? 0 : buffer.nbytes();
  stats_.bytes += found->second.nbytes;
  make_room();
}

void BufferCache::drop(const Key& key, std::uint64_t build) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.build == build) entries_.erase(found);
}

void BufferCache::make_room() noexcept {
  while (stats_.bytes > capacity_) {
    const auto oldest = entries_.find(used_.back());
    stats_.bytes -= oldest->second.nbytes;
    ++stats_.evictions;
    entries_.erase(oldest);
    used_.pop_back();
  }
}

void BufferCache::clear() noexcept {
  const std::lock_guard lock(mutex_);
  entries_.clear();
  used_.clear();
  stats_.bytes = 0;
}

CacheStats BufferCache::stats() const noexcept {
  const std::lock_guard lock(mutex_);
  CacheStats stats = stats_;
  stats.entries = used_.size();
  return stats;
}

}  // namespace safetensors::weights
