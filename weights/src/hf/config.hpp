// Reads a model's configuration from config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "common/json.hpp"
#include "safetensors/weights/config.hpp"

namespace safetensors::weights {

/// The entry of one module in `quantization`: parameters, or `false` if it is not quantised.
struct ModuleQuant {
  bool is_pack = true;               ///< false if the entry is `false`
  std::optional<QuantParams> quant;  ///< if the entry is an object
};

/// The configuration, and what only the backend needs.
struct HfConfig {
  ModelConfig model;
  bool says_tied = false;                      ///< the file has tie_word_embeddings
  std::map<std::string, ModuleQuant> modules;  ///< by the module's name in the file
};

/// Reads the configuration, and keeps `config` in ModelConfig::raw. `generation` is
/// generation_config.json, or nullptr; its token ids take precedence.
///
/// Throws: config, with the key as subject, for a value of the wrong type or outside its range.
[[nodiscard]] HfConfig read_hf_config(Json config, const Json* generation,
                                      const std::filesystem::path& path);

}  // namespace safetensors::weights
