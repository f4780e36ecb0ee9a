// Values that are made on first use, because making them imports NumPy or torch.
#pragma once

#include <atomic>
#include <memory>

namespace safetensors::python {

/// A value that the first caller of get() makes, and that lives until the process ends.
///
/// There is no lock: a process forked while another thread was inside get() would inherit it
/// locked, and never return from it. Instead, of several threads that make a value at once, the
/// first to finish stores its value and the others drop theirs. So making it twice must do no harm.
///
/// Requires: the GIL, which `make` may release.
template <typename Value>
class LazyValue {
 public:
  template <typename Make>
  Value& get(const Make& make) {
    if (Value* const found = value_.load(std::memory_order_acquire)) return *found;
    std::unique_ptr<Value> made(new Value(make()));
    Value* expected = nullptr;
    if (!value_.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel)) {
      return *expected;
    }
    return *made.release();
  }

 private:
  std::atomic<Value*> value_{nullptr};
};

}  // namespace safetensors::python
