// A model's configuration out of config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "safetensors/weights/config.hpp"
#include "weights/json.hpp"

namespace safetensors::weights {

/// An entry of `quantization` for one module.
struct ModuleQuant {
  bool is_pack = true;               ///< false: the entry says `false`
  std::optional<QuantParams> quant;  ///< when the entry is an object
};

/// config.json and what belongs to it.
struct HfConfig {
  ModelConfig model;
  bool says_tied = false;                      ///< tie_word_embeddings stands in the file
  std::map<std::string, ModuleQuant> modules;  ///< by source module name
};

/// Reads the table, and keeps `config` in it. `generation` is generation_config.json, if there is
/// one: its token ids win. Throws Error config: a value of the wrong type or outside its range,
/// with its key as subject.
[[nodiscard]] HfConfig read_hf_config(Json config, const Json* generation,
                                      const std::filesystem::path& path);

}  // namespace safetensors::weights
