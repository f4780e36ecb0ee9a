// Limits on what a model's files may claim.
#pragma once

#include <cstdint>

namespace safetensors::weights {

/// The largest counts, lengths and depths that are accepted. Independently of them, a count or
/// length that the rest of the file cannot hold is refused, and no memory is allocated for it.
struct Limits {
  std::uint64_t gguf_tensors = 65'536;       ///< in one GGUF file
  std::uint64_t metadata_items = 65'536;     ///< keys in one GGUF file
  std::uint64_t key_nbytes = 65'535;         ///< of a metadata key
  std::uint64_t name_nbytes = 255;           ///< of a tensor's name
  std::uint32_t array_depth = 4;             ///< arrays within arrays of metadata; above 8 means 8
  std::uint64_t alignment = 1U << 20;        ///< of tensors in a GGUF file
  std::uint64_t header_nbytes = 1ULL << 28;  ///< metadata and tensor list of one GGUF file
  std::uint32_t parts = 4096;                ///< files of a split GGUF model
  std::uint32_t json_depth = 128;            ///< objects and lists within each other
  std::uint64_t json_nbytes = 100'000'000;   ///< of one JSON file
};

}  // namespace safetensors::weights
