// The configuration of a model's quantisation scheme.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.hpp"
#include "schemes/ct_config.hpp"
#include "schemes/module_rules.hpp"

namespace safetensors::weights {

/// What the schemes read of `quantization_config` (transformers) or hf_quant_config.json
/// (modelopt). Values that a file does not state are empty.
struct QuantConfig {
  std::string method;                      ///< quant_method; empty if there is no configuration;
                                           ///< gptq or awq if auto-round packed as they do
  std::string format;                      ///< compressed-tensors' format, or modelopt's quant_algo
  std::optional<int> bits;                 ///< 1 to 8, also from w_bit and similar
  std::optional<std::int64_t> group_size;  ///< 1 or more; -1: a row
  std::optional<bool> symmetric;           ///< sym; the opposite of zero_point
  std::optional<std::array<std::uint32_t, 2>> block_size;  ///< weight_block_size: rows, columns
  CtGroups groups;                                         ///< config_groups
  std::string variant;             ///< of awq and gptq, in lower case: "gemm", "gptq_v2" ...
  bool has_rules = false;          ///< rules for single modules, of GPTQModel or auto-round
  std::vector<ModuleRule> rules;   ///< entries that must match a module
  std::optional<bool> has_conv1d;  ///< has_conv1d() of config.json, also without a method
  std::string refusal;             ///< why nothing is decoded: fields that change what weights mean
  std::filesystem::path path;      ///< of the file, for errors
};

/// Reads the configuration: `quantization_config` of config.json or of its text_config, else
/// `quantization` of hf_quant_config.json in the same directory, else, if the model has a tensor
/// `.qweight`, quantize_config.json (AutoGPTQ) or quant_config.json (AutoAWQ). `config` is
/// config.json, or nullptr. An MLX configuration, which has no quant_method, is none.
///
/// Throws: config, with the key as subject, for a value of the wrong type or outside its range;
/// what read_json() throws.
[[nodiscard]] QuantConfig read_quant_config(const Json* config, const Files& files,
                                            const std::filesystem::path& folder, bool has_qweight,
                                            const Limits& limits);

}  // namespace safetensors::weights
