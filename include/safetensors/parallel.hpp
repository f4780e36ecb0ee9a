// A loop over tasks, by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// Runs task(0) ... task(count - 1), each once, in any order, on this thread and helpers when
/// `nbytes` are many. Helpers live for the call only, so fork is safe between calls. The first
/// exception of a task or of `interrupt` (called on this thread only) stops the loop and is
/// rethrown after all threads are done. `threads` is how many serve best; 0: as many as there are
/// processors.
SAFETENSORS_API void parallel_for(std::size_t count, std::uint64_t nbytes,
                                  const std::function<void(std::size_t)>& task,
                                  const Interrupt& interrupt = {}, unsigned threads = 0);

}  // namespace safetensors
