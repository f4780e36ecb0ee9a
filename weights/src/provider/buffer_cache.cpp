#include "provider/buffer_cache.hpp"

#include <exception>
#include <utility>

namespace safetensors::weights {

WeightBuffer BufferCache::get(const Key& key, const std::function<WeightBuffer()>& build) {
  std::promise<WeightBuffer> promise;
  State& state = state_.get();
  std::unique_lock lock(state.mutex);
  const auto [found, is_new] = state.entries.try_emplace(key);
  Entry& entry = found->second;
  if (!is_new) {
    ++state.stats.hits;
    if (entry.used != state.used.end()) {
      state.used.splice(state.used.begin(), state.used, entry.used);
    }
    const std::shared_future<WeightBuffer> buffer = entry.buffer;
    lock.unlock();
    return buffer.get();
  }
  ++state.stats.misses;
  const std::uint64_t number = ++state.builds;
  entry = {promise.get_future().share(), state.used.end(), 0, number};
  lock.unlock();
  try {
    WeightBuffer buffer = build();
    keep(state, key, number, buffer);
    promise.set_value(buffer);
    return buffer;
  } catch (...) {
    drop(state, key, number);
    promise.set_exception(std::current_exception());
    throw;
  }
}

void BufferCache::keep(State& state, const Key& key, std::uint64_t build,
                       const WeightBuffer& buffer) const {
  if (&state != state_.find()) return;
  {
    const std::lock_guard lock(state.mutex);
    const auto found = state.entries.find(key);
    if (found == state.entries.end() || found->second.build != build) return;
    state.used.push_front(key);
    found->second.used = state.used.begin();
    found->second.nbytes = buffer.is_view() ? 0 : buffer.nbytes();
    state.stats.bytes += found->second.nbytes;
  }
  while (evict_one(state)) {
  }
}

void BufferCache::drop(State& state, const Key& key, std::uint64_t build) const noexcept {
  if (&state != state_.find()) return;
  const std::lock_guard lock(state.mutex);
  const auto found = state.entries.find(key);
  if (found != state.entries.end() && found->second.build == build) state.entries.erase(found);
}

bool BufferCache::evict_one(State& state) const noexcept {
  std::shared_future<WeightBuffer> oldest;  // freed without the lock: it calls the allocator
  const std::lock_guard lock(state.mutex);
  if (state.stats.bytes <= capacity_) return false;
  const auto found = state.entries.find(state.used.back());
  oldest = std::move(found->second.buffer);
  state.stats.bytes -= found->second.nbytes;
  ++state.stats.evictions;
  state.entries.erase(found);
  state.used.pop_back();
  return true;
}

void BufferCache::clear() noexcept {
  State* const state = state_.find();
  if (state == nullptr) return;
  std::map<Key, Entry, Before> entries;  // freed without the lock
  const std::lock_guard lock(state->mutex);
  entries.swap(state->entries);
  state->used.clear();
  state->stats.bytes = 0;
}

CacheStats BufferCache::stats() const noexcept {
  State* const state = state_.find();
  if (state == nullptr) return {};
  const std::lock_guard lock(state->mutex);
  CacheStats stats = state->stats;
  stats.entries = state->used.size();
  return stats;
}

}  // namespace safetensors::weights
