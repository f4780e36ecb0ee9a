// The files of a Hugging Face or MLX model.
#pragma once

#include <filesystem>

#include "hf/config.hpp"
#include "safetensors/weights/limits.hpp"
#include "tensors/shards.hpp"

namespace safetensors::weights {

struct HfFiles {
  FoundModel shards;
  std::filesystem::path config;      ///< config.json beside the shards; empty if there is none
  std::filesystem::path generation;  ///< generation_config.json, likewise
};

/// Finds the files of a directory, an index, or those that belong to a single safetensors file.
///
/// Throws: what find_shards() throws.
[[nodiscard]] HfFiles find_hf_files(const Files& files, const std::filesystem::path& path,
                                    const ModelChoice& choice);

/// Reads the configuration, which is empty if there is no config.json.
///
/// Throws: what read_json() and read_hf_config() throw.
[[nodiscard]] HfConfig read_hf_config(const Files& files, const HfFiles& found,
                                      const Limits& limits);

}  // namespace safetensors::weights
