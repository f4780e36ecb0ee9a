// How many threads all bulk loads of the process may have together.
#pragma once

namespace safetensors::io {

inline constexpr unsigned kMostLoadThreads = 32;

/// Takes up to `wanted` of the threads that are left, but at least one: a load never waits for
/// another. Give them back.
[[nodiscard]] unsigned take_threads(unsigned wanted);
void give_threads(unsigned count);

}  // namespace safetensors::io
