// A loop over tasks, run by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"

namespace safetensors {

/// Runs task(0) ... task(count - 1), each once and in any order. If the tasks process 8 MiB or more
/// in all (`nbytes`), helper threads share the work with the calling thread; below that, starting
/// threads costs more than it saves.
///
/// The helpers end before the call returns, so that a process can fork between calls.
///
/// threads: how many threads give the best throughput; 0 for one for each processor, up to 8.
/// Throws: the first exception of a task or of `interrupt`, once all threads have stopped. Tasks
///   that have not started by then do not run.
/// Thread safety: `interrupt` runs on the calling thread only, tasks on any.
SAFETENSORS_API void parallel_for(std::size_t count, std::uint64_t nbytes,
                                  const std::function<void(std::size_t)>& task,
                                  const Interrupt& interrupt = {}, unsigned threads = 0);

}  // namespace safetensors
