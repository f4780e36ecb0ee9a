// A value that is made when it is first needed.
#pragma once

#include <atomic>
#include <memory>

namespace safetensors {

/// A value that the first call of get() makes, and that lives as long as this object.
///
/// There is no lock, which a fork could copy locked. So of several threads that make the value at
/// once, each makes one, and the first is kept.
///
/// Thread safety: all threads may call get().
template <typename Value>
class MadeOnce {
 public:
  MadeOnce() noexcept = default;
  MadeOnce(const MadeOnce&) = delete;
  MadeOnce& operator=(const MadeOnce&) = delete;
  ~MadeOnce() { delete value_.load(std::memory_order_relaxed); }

  template <typename Make>
  [[nodiscard]] const Value& get(const Make& make) const {
    const Value* found = value_.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    auto made = std::make_unique<const Value>(make());
    if (value_.compare_exchange_strong(found, made.get())) return *made.release();
    return *found;
  }

 private:
  mutable std::atomic<const Value*> value_{nullptr};
};

}  // namespace safetensors
