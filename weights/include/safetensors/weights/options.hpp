// How a model is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "safetensors/model_files.hpp"
#include "safetensors/weights/buffer.hpp"
#include "safetensors/weights/limits.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// Options of WeightProvider::open().
struct ModelOptions {
  enum Layout : std::uint8_t {
    native,  ///< numbers as stored
    hf,  ///< numbers of the Hugging Face checkpoint that a GGUF file was made from: restores the
         ///< order of q's and k's rows, and subtracts the 1 that was added to Gemma's norm
         ///< weights. Opening fails for architectures whose conversion to GGUF changed more than
         ///< that, or is not known
  };
  Layout layout = native;
  /// Which model of a folder is opened; see model_files.hpp. Not for GGUF files.
  ModelChoice choice{};
  bool bf16_to_f16 = true;          ///< get_tensor returns BF16 tensors as F16; false: as stored
  bool scales_to_f16 = true;        ///< get_tensor returns scales and biases of packs as F16
  bool allow_f16_overflow = false;  ///< too large values become infinite; false: f16_overflow
  bool mmap = true;                 ///< false: read local files on demand, map nothing
  bool strict_index = true;         ///< false: tensors missing from the index only cause a warning
  bool allow_gaps = false;          ///< accept unused bytes between tensors of a GGUF file
  /// Total size of the buffers that the cache may hold, in bytes. Above it, the least recently used
  /// buffers are removed.
  std::size_t cache_bytes = std::numeric_limits<std::size_t>::max();
  /// Parameters of packs for which neither the configuration nor the file states any.
  std::optional<QuantParams> quant;
  Limits limits{};
  /// Allocates the memory of buffers. If it is set, only get_stored returns views of the file.
  Allocator allocator;
};

/// The old name of ModelOptions. Will be removed in the next version.
using OpenOptions [[deprecated("use ModelOptions")]] = ModelOptions;

}  // namespace safetensors::weights
