#include "schemes/quant_config.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/text.hpp"
#include "common/fail.hpp"
#include "config/json_section.hpp"
#include "schemes/conv1d.hpp"

namespace safetensors::weights {
namespace {

constexpr std::int64_t kMaxBlock = 65'536;

/// Returns an integer within `least` and `most`. Booleans and fractions are refused.
std::optional<std::int64_t> integer_within(const Section& section,
                                           const std::filesystem::path& path,
                                           std::initializer_list<std::string_view> keys,
                                           std::int64_t least, std::int64_t most) {
  const auto [value, key] = section.find(keys);
  if (value == nullptr) return std::nullopt;
  const std::int64_t* number = value->as_int64();
  if (number == nullptr) section.refuse(key, "an integer", value->kind());
  if (*number < least || *number > most) {
    fail(Errc::config, path, key,
         std::to_string(*number) + " is not within " + std::to_string(least) + " and " +
             std::to_string(most));
  }
  return *number;
}

void read_block_size(const Section& section, QuantConfig& config) {
  const std::string_view key = "weight_block_size";
  const std::span<const Json> sizes = section.array(key);
  if (sizes.empty()) return;
  if (sizes.size() != 2) fail(Errc::config, config.path, key, "it must have two numbers");
  std::array<std::uint32_t, 2> block{};
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t* number = sizes[i].as_int64();
    if (number == nullptr) section.refuse(key, "an integer", sizes[i].kind());
    if (*number < 1 || *number > kMaxBlock) {
      fail(Errc::config, config.path, key,
           std::to_string(*number) + " is not within 1 and " + std::to_string(kMaxBlock));
    }
    block[i] = static_cast<std::uint32_t>(*number);
  }
  config.block_size = block;
}

/// The packings of auto-round that are those of GPTQ or AWQ, by the last part of packing_format.
struct RoundPacking {
  std::string_view packing;
  std::string_view method;
  std::string_view variant;
};
constexpr RoundPacking kRoundPackings[] = {
    {"auto_gptq", "gptq", "gptq"},    {"gptq", "gptq", "gptq"},
    {"auto", "gptq", "gptq"},         {"auto_round", "gptq", "gptq_v2"},
    {"exllamav2", "gptq", "gptq_v2"}, {"gptqmodel", "gptq", "gptq_v2"},
    {"auto_awq", "awq", "gemm"},      {"awq", "awq", "gemm"},
};

/// Replaces auto-round by the method whose packing it used. Other packings, and activations of 8
/// bits or less, keep the method, which is not decoded.
void read_auto_round(const Section& section, QuantConfig& config) {
  if (config.method.find("auto-round") == std::string::npos) return;  // "intel/auto-round"
  config.method = "auto-round";
  // Releases before packing_format have "backend": "auto_round:exllamav2", or "auto".
  const auto older = section.text({"backend"}).value_or("");
  const std::string packing =
      section.text({"packing_format"})
          .value_or(older.find(':') == std::string::npos ? "auto_gptq" : older);
  const auto activations = integer_within(section, config.path, {"act_bits"}, 1, 64);
  const auto kind = section.text({"data_type"}).value_or("int");
  if ((activations && *activations <= 8) || !kind.starts_with("int")) return;
  const std::string_view last = std::string_view(packing).substr(packing.rfind(':') + 1);
  const auto* const known = std::ranges::find(kRoundPackings, last, &RoundPacking::packing);
  if (known == std::end(kRoundPackings)) return;
  config.method = known->method;
  config.variant = known->variant;
  config.has_rules = section.find({"extra_config"}).value != nullptr;
}

void read_variant(const Section& section, QuantConfig& config) {
  if (!config.variant.empty()) return;
  const bool is_awq = config.method == "awq";
  if (!is_awq && config.method != "gptq") return;
  const auto stated = is_awq ? section.text({"version", "checkpoint_format", "format"})
                             : section.text({"checkpoint_format", "format"});
  config.variant = stated.value_or("");
  for (char& letter : config.variant) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  if (section.boolean("is_marlin_format").value_or(false)) config.variant = "marlin";
  config.has_rules = section.find({"dynamic"}).value != nullptr;
}

/// The fields of compressed-tensors' QuantizationConfig on which values do not depend, or which are
/// read elsewhere, and those that transformers and older versions add.
constexpr std::string_view kCtFields[] = {
    "config_groups",    "format",
    "ignore",           "global_compression_ratio",
    "kv_cache_scheme",  "moe_sparsity_config",
    "quant_method",     "quantization_status",
    "run_compressed",   "sparsity_config",
    "transform_config", "version",
};

/// Returns whether a value states nothing: null, false, an empty list or object.
bool is_blank(const Json& value) {
  const Json::Array* array = value.as_array();
  const Json::Object* object = value.as_object();
  const bool* flag = value.as_bool();
  return value.is_null() || (flag != nullptr && !*flag) || (array != nullptr && array->empty()) ||
         (object != nullptr && object->empty());
}

/// Returns a transform that is done to activations when the model runs, or an empty text. Those
/// of weights are in the weights.
///
///     "transform_config": {"config_groups": {"u": {"apply": [{"location": "input", ...}]}}}
std::string activation_transform(const Json& transforms) {
  const Json* groups = transforms.find("config_groups");
  if (groups == nullptr || groups->as_object() == nullptr) return "config_groups";
  for (const auto& [name, group] : *groups->as_object()) {
    const Json* apply = group.find("apply");
    if (apply == nullptr || apply->as_array() == nullptr) return clipped(name);
    for (const Json& each : *apply->as_array()) {
      const Json* location = each.find("location");
      const std::string* text = location == nullptr ? nullptr : location->as_string();
      if (text == nullptr) return clipped(name);
      if (*text != "weight_input" && *text != "weight_output") return clipped(*text);
    }
  }
  return {};
}

/// Fields of GPTQModel that change what weights mean, whatever their value is.
constexpr std::pair<std::string_view, std::string_view> kOtherMeanings[] = {
    {"rotation", "activations are transformed when the model runs"},
    {"weight_scale_semantics", "its weights are divided by their scales"},
};

void read_other_meanings(const Json& json, QuantConfig& config) {
  for (const auto& [key, meaning] : kOtherMeanings) {
    const Json* value = json.find(key);
    if (value == nullptr || is_blank(*value)) continue;
    config.refusal = "quantization_config has `" + std::string(key) + "`: " + std::string(meaning);
    return;
  }
}

/// Finds fields of compressed-tensors that change what its weights mean.
void read_ct_fields(const Json& json, QuantConfig& config) {
  if (config.method != "compressed-tensors" || json.as_object() == nullptr) return;
  for (const auto& [key, value] : *json.as_object()) {
    if (is_blank(value)) continue;
    if (key == "transform_config") {
      const std::string place = activation_transform(value);
      if (place.empty()) continue;
      config.refusal = "quantization_config has `transform_config` (`" + place +
                       "`): activations are transformed when the model runs, and its weights are "
                       "not those of a plain model";
      return;
    }
    const bool has_parts = value.as_object() != nullptr || value.as_array() != nullptr;
    if (!has_parts || std::ranges::find(kCtFields, key) != std::end(kCtFields)) continue;
    config.refusal = "quantization_config has `" + clipped(key) +
                     "`, which is no known field of compressed-tensors: values may depend on it";
    return;
  }
}

/// `method` is that of a file that states none.
QuantConfig read_fields(const Json& json, std::filesystem::path path, std::string method) {
  QuantConfig config;
  config.path = std::move(path);
  const Section section(json, config.path);
  config.method = section.text({"quant_method"}).value_or(std::move(method));
  config.format = section.text({"format", "quant_algo"}).value_or("");
  if (const auto bits = integer_within(section, config.path, {"bits", "w_bit"}, 1, 8)) {
    config.bits = static_cast<int>(*bits);
  }
  config.group_size = integer_within(section, config.path, {"group_size", "q_group_size"}, -1,
                                     std::int64_t{1} << 30);
  if (config.group_size == 0) fail(Errc::config, config.path, "group_size", "it must not be 0");
  config.symmetric = section.boolean("sym");
  if (const auto zeros = section.boolean("zero_point")) config.symmetric = !*zeros;
  read_auto_round(section, config);
  read_variant(section, config);
  read_block_size(section, config);
  config.groups = CtGroups(json, config.path);
  config.rules = read_module_rules(json);
  read_other_meanings(json, config);
  read_ct_fields(json, config);
  const CtGroup* group = config.groups.only();
  if (!config.block_size && group != nullptr) config.block_size = group->block_size;
  return config;
}

/// The files of AutoGPTQ and AutoAWQ from before config.json had their settings, and the methods.
constexpr std::pair<std::string_view, std::string_view> kOlderFiles[] = {
    {"quantize_config.json", "gptq"},
    {"quant_config.json", "awq"},
};

/// Returns the quantization_config that states a method: of the configuration, or of a part of it
/// such as text_config, at any depth. Returns null if there is none.
///
/// Throws: config if two of them state different things.
const Json* find_method(const Json& config, const std::filesystem::path& path) {
  constexpr std::string_view kKey = "quantization_config";
  const Json::Object* members = config.as_object();
  if (members == nullptr) return nullptr;
  const Json* found = nullptr;
  for (const auto& [key, value] : *members) {
    if (!key.ends_with("_config")) continue;
    const bool is_own = key == kKey && value.find("quant_method") != nullptr;
    const Json* each = is_own ? &value : find_method(value, path);
    if (found != nullptr && each != nullptr && *found != *each) {
      fail(Errc::config, path, kKey, "it is stated twice, and differently");
    }
    if (each != nullptr) found = each;
  }
  return found;
}

QuantConfig read_method(const Json* config, const Files& files, const std::filesystem::path& folder,
                        bool has_qweight, const Limits& limits) {
  if (config != nullptr) {
    const std::filesystem::path path = folder / "config.json";
    if (const Json* json = find_method(*config, path)) return read_fields(*json, path, {});
  }
  const std::filesystem::path modelopt = folder / "hf_quant_config.json";
  if (files.has(modelopt)) {
    const Json file = read_json(files, modelopt, Duplicates::last_counts, limits);
    const Json* json = file.find("quantization");
    if (json == nullptr || json->as_object() == nullptr) {
      fail(Errc::config, modelopt, "quantization", "an object was expected");
    }
    return read_fields(*json, modelopt, "modelopt");
  }
  if (!has_qweight) return {};
  if (std::ranges::all_of(kOlderFiles,
                          [&](const auto& each) { return files.has(folder / each.first); })) {
    fail(Errc::config, folder / kOlderFiles[0].first, {},
         std::string(kOlderFiles[1].first) + " is beside it, which states another method");
  }
  for (const auto& [name, method] : kOlderFiles) {
    const std::filesystem::path path = folder / name;
    if (!files.has(path)) continue;
    const Json file = read_json(files, path, Duplicates::last_counts, limits);
    if (file.as_object() == nullptr) fail(Errc::config, path, {}, "an object was expected");
    return read_fields(file, path, std::string(method));
  }
  return {};
}

}  // namespace

QuantConfig read_quant_config(const Json* config, const Files& files,
                              const std::filesystem::path& folder, bool has_qweight,
                              const Limits& limits) {
  QuantConfig quant = read_method(config, files, folder, has_qweight, limits);
  quant.has_conv1d = has_conv1d(config);
  return quant;
}

}  // namespace safetensors::weights
