// Buffers that were built, kept for those who ask again.
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

#include "safetensors/weights/buffer.hpp"

namespace safetensors::weights {

/// Keeps buffers up to a number of bytes; those used longest ago go first. Thread safe.
class BufferCache {
 public:
  /// The tensors of a buffer, by index, in order.
  using Key = std::vector<std::size_t>;

  explicit BufferCache(std::size_t capacity) noexcept : capacity_(capacity) {}

  /// The buffer of that key, built when there is none. Threads that ask meanwhile wait for it; when
  /// `build` throws, all of them get what it threw, and the next to ask builds again.
  [[nodiscard]] Buffer get(const Key& key, const std::function<Buffer()>& build);
  void clear() noexcept;
  [[nodiscard]] CacheStats stats() const noexcept;

 private:
  struct Entry {
    std::shared_future<Buffer> buffer;
    std::list<Key>::iterator used;  ///< end() while it is built
    std::size_t nbytes = 0;
    std::uint64_t build = 0;  ///< which one this is: clear() may have dropped it meanwhile
  };

  void keep(const Key& key, std::uint64_t build, const Buffer& buffer);
  void drop(const Key& key, std::uint64_t build) noexcept;
  void make_room() noexcept;

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  /// What a < b should mean. In libstdc++ 12 the vectors' own operator compares single bytes of
  /// unsigned numbers on big-endian machines, and takes different keys for one.
  struct Before {
    bool operator()(const Key& a, const Key& b) const noexcept {
      return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
  };

  std::map<Key, Entry, Before> entries_;
  std::list<Key> used_;  ///< last used first
  CacheStats stats_;
  std::uint64_t builds_ = 0;
};

}  // namespace safetensors::weights
