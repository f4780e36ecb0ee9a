// The process, as the system sees it.
#pragma once

#include <cstdint>

namespace safetensors::io {

/// Counts forks between the first call of this function in any ancestor and now. What belongs to
/// another generation is the parent's: its threads, its locks, its device memory.
[[nodiscard]] std::uint64_t fork_generation() noexcept;

/// Processors that this process may use, by its affinity and the limits set for it.
[[nodiscard]] unsigned processor_count() noexcept;

}  // namespace safetensors::io
