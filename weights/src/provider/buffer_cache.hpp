// Least-recently-used cache of built buffers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "base/per_process.hpp"
#include "safetensors/weights/buffer.hpp"

namespace safetensors::weights {

/// Keeps buffers up to a number of bytes, and evicts the least recently used ones first.
///
/// A forked process starts with an empty cache: its copy of the parent's may be locked, or contain
/// builds of threads that the child does not have.
/// Thread safety: all threads may call all methods.
class BufferCache {
 public:
  /// Indices of the tensors whose parts make up the buffer, in order.
  using Key = std::vector<std::size_t>;

  explicit BufferCache(std::size_t capacity) noexcept : capacity_(capacity) {}
  BufferCache(const BufferCache&) = delete;
  BufferCache& operator=(const BufferCache&) = delete;
  ~BufferCache() { state_.reset(); }

  /// Returns the buffer for `key` and calls `build` if the cache does not have it. Threads that ask
  /// for a buffer while another builds it wait for that build.
  ///
  /// Throws: what `build` throws, in every thread that waits for it. The next call builds again.
  [[nodiscard]] WeightBuffer get(const Key& key, const std::function<WeightBuffer()>& build);
  void clear() noexcept;
  [[nodiscard]] CacheStats stats() const noexcept;

 private:
  struct Entry {
    std::shared_future<WeightBuffer> buffer;
    std::list<Key>::iterator used;  ///< end() until the buffer is built
    std::size_t nbytes = 0;
    std::uint64_t build = 0;  ///< number of the build: clear() may have removed an earlier one
  };

  /// Compares keys element by element. In libstdc++ 12 the vectors' own operator compares unsigned
  /// numbers by single bytes on big-endian machines, where distinct keys then compare equal.
  struct Before {
    bool operator()(const Key& a, const Key& b) const noexcept {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };

  struct State {
    std::mutex mutex;
    std::map<Key, Entry, Before> entries;
    std::list<Key> used;  ///< most recently used first
    CacheStats stats;
    std::uint64_t builds = 0;
  };

  /// Both do nothing if the entry of that build is gone: clear() removed it, or the build forked
  /// and this is the child.
  void keep(State& state, const Key& key, std::uint64_t build, const WeightBuffer& buffer) const;
  void drop(State& state, const Key& key, std::uint64_t build) const noexcept;
  /// Removes the buffer used least recently, if there are too many bytes. Returns whether it did.
  bool evict_one(State& state) const noexcept;

  const std::size_t capacity_;
  PerProcess<State> state_;
};

}  // namespace safetensors::weights
