// The number of threads that all loads of the process may use together.
#pragma once

namespace safetensors::io {

inline constexpr unsigned kMaxLoadThreads = 32;

/// Reserves up to `wanted` of the threads that are left, and at least one, so that no load waits
/// for another. Returns how many; pass that to release_threads().
[[nodiscard]] unsigned acquire_threads(unsigned wanted);
void release_threads(unsigned count);

}  // namespace safetensors::io
