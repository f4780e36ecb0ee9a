// The GIL for threads of the core, which Python does not know.
//
// The core's readers call Python only to read from a RangeReader. The interpreter must not end
// while one of them is in such a call: it would wait for a GIL that nobody releases any more. So
// each call passes a gate, which an atexit callback closes. The callback then waits until no thread
// is inside.
#pragma once

#include <cstdint>

#include "python.hpp"

namespace safetensors::python {

/// Holds the GIL while it lives, on any thread, whether or not the thread holds it already. A
/// thread without a Python thread state gets one, which it keeps until it ends.
class AnyThreadGil {
 public:
  AnyThreadGil() noexcept;
  AnyThreadGil(const AnyThreadGil&) = delete;
  AnyThreadGil& operator=(const AnyThreadGil&) = delete;
  ~AnyThreadGil();

  /// Returns false if the interpreter is exiting. Then the thread may not use Python objects.
  explicit operator bool() const noexcept { return is_inside_; }

 private:
  bool is_inside_;
  bool was_held_ = false;
};

/// Makes later AnyThreadGils fail.
void close_python_gate() noexcept;
/// Returns how many AnyThreadGils of this process exist.
[[nodiscard]] int threads_in_python() noexcept;

/// Returns the number of forks between the process that loaded this module and this one.
[[nodiscard]] std::uint64_t fork_count() noexcept;

}  // namespace safetensors::python
