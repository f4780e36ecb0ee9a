// How a model is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

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
  bool bf16_to_f16 = true;          ///< get_tensor returns BF16 tensors as F16; else as stored
  bool scales_to_f16 = true;        ///< get_tensor returns scales and biases of packs as F16
  bool allow_f16_overflow = false;  ///< values too large for F16 become infinite; else f16_overflow
  bool mmap = true;                 ///< false: read on demand, map nothing
  bool strict_index = true;         ///< false: tensors missing from the index only cause a warning
  bool allow_gaps = false;          ///< accept unused bytes between tensors of a GGUF file
  /// Buffers that the provider may keep, in bytes. Above it, the least recently used ones go first.
  std::size_t cache_bytes = std::numeric_limits<std::size_t>::max();
  /// Parameters of packs for which neither the configuration nor the file states any.
  std::optional<QuantParams> quant;
  Limits limits{};
  /// Allocates the memory of buffers. With an allocator only get_stored returns views of the file.
  Allocator allocator;
};

using OpenOptions = ModelOptions;  ///< the former name, for one version

}  // namespace safetensors::weights
