// Reading tensors of mapped files into the page cache before their views are used.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "safetensors/export.hpp"
#include "safetensors/safe_open.hpp"

namespace safetensors {

/// A tensor, or parts of one, whose view will be used soon.
struct CachedRead {
  const SafeOpen* file = nullptr;
  const TensorInfo* info = nullptr;  ///< an entry of the file
  /// The parts. Empty: the whole tensor.
  std::span<const ByteRuns> runs{};
};

/// Reads tensors of mapped files into the page cache, with several threads, so that nobody who uses
/// their views waits for a disk. Bytes that are cached are not read again. Nothing is read if the
/// tensors together exceed 90 % of the available memory, and nothing of a file that is not mapped.
///
/// Only Linux says which bytes are cached; elsewhere all are read. Of a file that the process
/// neither owns nor may write, Linux says that all are cached, so that nothing is read.
///
/// `progress` is called from time to time on the calling thread, with the bytes of the tensors that
/// are cached or will not be read. `done` never falls. Only the last call has done == total.
///
/// Throws: Error kIo or kFileChanged; kInvalidArgument if an entry or a part does not lie in its
///   file; what `interrupt` and `progress` throw.
SAFETENSORS_API void fill_page_cache(
    std::span<const CachedRead> reads, const Interrupt& interrupt = {},
    const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = {});

}  // namespace safetensors
