#include "weights/hf_config.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

#include "weights/config_rules.hpp"
#include "weights/dequant/dequant.hpp"
#include "weights/fail.hpp"
#include "weights/quant_params.hpp"

namespace safetensors::weights {
namespace {

/// One of config.json's objects, with the errors that its values may raise.
class Section {
 public:
  Section(const Json& json, const std::filesystem::path& path) : json_(&json), path_(&path) {}

  /// The first of the keys that is there and not null.
  struct Found {
    const Json* value = nullptr;
    std::string_view key;
  };
  [[nodiscard]] Found find(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys) {
      const Json* value = json_->find(key);
      if (value != nullptr && !value->is_null()) return {value, key};
    }
    return {};
  }

  [[nodiscard]] std::optional<std::int64_t> integer(
      std::initializer_list<std::string_view> keys) const {
    const auto [value, key] = find(keys);
    if (value == nullptr) return std::nullopt;
    return integer_of(*value, key);
  }
  [[nodiscard]] std::int64_t integer_of(const Json& value, std::string_view key) const {
    const std::optional<std::int64_t> number = value.as_integer();
    if (!number) refuse(key, "an integer", value.kind());
    if (*number < 0 || *number >= kIntegerEnd) {
      fail(Errc::config, *path_, key, std::to_string(*number) + " is not within 0 and 2^31");
    }
    return *number;
  }
  [[nodiscard]] std::optional<double> number(std::initializer_list<std::string_view> keys) const {
    const auto [value, key] = find(keys);
    if (value == nullptr) return std::nullopt;
    const std::optional<double> number = value->as_number();
    if (!number) refuse(key, "a number", value->kind());
    return number;
  }
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const {
    const Json* value = find({key}).value;
    if (value == nullptr) return std::nullopt;
    if (value->as_string() == nullptr) refuse(key, "a string", value->kind());
    return *value->as_string();
  }
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const Json* value = find({key}).value;
    if (value == nullptr) return std::nullopt;
    if (value->as_bool() == nullptr) refuse(key, "a boolean", value->kind());
    return *value->as_bool();
  }
  /// An integer, or one for each layer.
  void per_layer(std::string_view key, std::optional<std::int64_t>& most,
                 std::vector<std::int64_t>& layers) const {
    const Json* value = find({key}).value;
    if (value == nullptr) return;
    const Json::Array* array = value->as_array();
    if (array == nullptr) {
      most = integer_of(*value, key);
      return;
    }
    for (const Json& element : *array) layers.push_back(integer_of(element, key));
    if (!layers.empty()) most = *std::ranges::max_element(layers);
  }
  [[noreturn]] void refuse(std::string_view key, std::string_view wanted,
                           std::string_view found) const {
    fail(Errc::config, *path_, key,
         std::string(wanted) + " was expected, not " + std::string(found));
  }

 private:
  const Json* json_;
  const std::filesystem::path* path_;
};

/// The parameters of an object of `quantization`, the whole or one module's.
QuantParams read_quant(const Json& json, std::string_view key, const std::filesystem::path& path) {
  const Section section(json, path);
  const std::optional<std::string> mode_name = section.text("mode");
  const std::optional<QuantMode> mode =
      mode_name ? parse_quant_mode(*mode_name) : QuantMode::affine;
  if (!mode) {
    fail(Errc::config, path, key, "`" + *mode_name + "` is no mode of quantisation");
  }
  QuantParams params = defaults_of(*mode);
  if (const auto bits = section.integer({"bits"})) params.bits = static_cast<int>(*bits);
  if (const auto group = section.integer({"group_size"})) {
    params.group_size = static_cast<int>(*group);
  }
  if (!is_known(params)) fail(Errc::config, path, key, "there are no packs of " + shown(params));
  return params;
}

bool is_module_entry(const Json::Member& member) {
  return member.second.as_object() != nullptr || member.second.as_bool() != nullptr;
}

void read_quantization(const Section& section, const std::filesystem::path& path,
                       HfConfig& config) {
  const auto [value, key] = section.find({"quantization", "quantization_config"});
  if (value == nullptr) return;
  if (value->as_object() == nullptr) section.refuse(key, "an object", value->kind());
  const std::optional<std::string> method = Section(*value, path).text("quant_method");
  if (method && key == "quantization_config") {
    if (*method != "mxfp4") {
      config.model.quantization_method = *method;
      return;
    }
    config.model.quantization = defaults_of(QuantMode::mxfp4);
    return;
  }
  config.model.quantization = read_quant(*value, key, path);
  for (const Json::Member& member : *value->as_object()) {
    if (!is_module_entry(member)) continue;
    ModuleQuant& entry = config.modules[member.first];
    entry = {};
    if (const bool* is_pack = member.second.as_bool()) {
      entry.is_pack = *is_pack;
    } else {
      entry.quant = read_quant(member.second, member.first, path);
    }
  }
}

std::optional<RopeScaling> read_rope_scaling(const Section& section,
                                             const std::filesystem::path& path) {
  const Json* value = section.find({"rope_scaling", "rope_parameters"}).value;
  if (value == nullptr || value->as_object() == nullptr) return std::nullopt;
  if (const Json* full = value->find("full_attention"); full != nullptr && full->as_object()) {
    value = full;
  }
  const Section rope(*value, path);
  RopeScaling scaling;
  const auto type = rope.text("rope_type");
  scaling.type = type ? *type : rope.text("type").value_or("");
  if (scaling.type.empty() || scaling.type == "default") return std::nullopt;
  scaling.factor = rope.number({"factor"});
  scaling.original_max_position_embeddings = rope.integer({"original_max_position_embeddings"});
  scaling.low_freq_factor = rope.number({"low_freq_factor"});
  scaling.high_freq_factor = rope.number({"high_freq_factor"});
  return scaling;
}

double read_rope_theta(const Section& section, const std::filesystem::path& path) {
  if (const auto theta = section.number({"rope_theta"})) return *theta;
  const Json* rope = section.find({"rope_parameters"}).value;
  if (rope != nullptr) {
    if (const auto theta = Section(*rope, path).number({"rope_theta"})) return *theta;
    const Json* full = rope->find("full_attention");
    if (full != nullptr) {
      if (const auto theta = Section(*full, path).number({"rope_theta"})) return *theta;
    }
  }
  return ModelConfig{}.rope_theta;
}

/// Token ids: one, or a list of them.
std::vector<std::int64_t> read_token_ids(const Section* generation, const Section& config,
                                         std::string_view key) {
  const Section* from = &config;
  const Json* value = generation == nullptr ? nullptr : generation->find({key}).value;
  if (value != nullptr) from = generation;
  if (value == nullptr) value = config.find({key}).value;
  std::vector<std::int64_t> ids;
  if (value == nullptr) return ids;
  if (const Json::Array* array = value->as_array()) {
    for (const Json& id : *array) ids.push_back(from->integer_of(id, key));
  } else {
    ids.push_back(from->integer_of(*value, key));
  }
  return ids;
}

}  // namespace

HfConfig read_hf_config(const Json& json, const Json* generation,
                        const std::filesystem::path& path) {
  if (json.as_object() == nullptr) {
    fail(Errc::config, path, {}, "an object was expected, not " + std::string(json.kind()));
  }
  const Section outer(json, path);
  // Models of several kinds of input keep the language model's table in one of its own.
  const Json* inner_json = json.find("text_config");
  const bool nested = outer.find({"hidden_size"}).value == nullptr && inner_json != nullptr &&
                      inner_json->as_object() != nullptr;
  const Section section = nested ? Section(*inner_json, path) : outer;
  const auto of_either = [&](std::string_view key) {
    return section.find({key}).value != nullptr ? section : outer;
  };

  HfConfig result;
  ModelConfig& model = result.model;
  model.architecture = section.text("model_type");
  model.dim = section.integer({"hidden_size"});
  model.n_layers = section.integer({"num_hidden_layers"});
  section.per_layer("num_attention_heads", model.n_heads, model.n_heads_of_layers);
  section.per_layer("num_key_value_heads", model.n_kv_heads, model.n_kv_heads_of_layers);
  model.head_dim = section.integer({"head_dim"});
  fill_heads(model);
  section.per_layer("intermediate_size", model.ffn_dim, model.ffn_dim_of_layers);
  model.vocab_size = section.integer({"vocab_size"});
  model.max_seq_len = section.integer({"max_position_embeddings"});
  model.norm_eps =
      section.number({"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"});
  model.rope_theta = read_rope_theta(section, path);
  model.rope_scaling = read_rope_scaling(section, path);
  model.sliding_window = section.integer({"sliding_window"}).value_or(0);
  model.n_experts =
      section.integer({"num_local_experts", "num_experts", "n_routed_experts"}).value_or(0);
  model.n_experts_used = section.integer({"num_experts_per_tok"}).value_or(0);
  model.moe_ffn_dim = section.integer({"moe_intermediate_size"}).value_or(0);
  model.attn_logit_softcap = section.number({"attn_logit_softcapping"});
  model.final_logit_softcap = section.number({"final_logit_softcapping"});

  for (const std::string_view gemma : {"gemma", "gemma2", "gemma3", "gemma3_text"}) {
    if (model.architecture == gemma) model.norm_weight_offset = 1.0;
  }
  if (const auto tied = of_either("tie_word_embeddings").boolean("tie_word_embeddings")) {
    model.tie_word_embeddings = *tied;
    result.says_tied = true;
  }
  const bool has_inner = section.find({"quantization", "quantization_config"}).value != nullptr;
  read_quantization(has_inner ? section : outer, path, result);

  std::optional<Section> generated;
  const std::filesystem::path generation_path = path.parent_path() / "generation_config.json";
  if (generation != nullptr && generation->as_object() != nullptr) {
    generated.emplace(*generation, generation_path);
  }
  const Section* generation_section = generated ? &*generated : nullptr;
  const std::vector<std::int64_t> bos =
      read_token_ids(generation_section, of_either("bos_token_id"), "bos_token_id");
  if (!bos.empty()) model.bos_token_id = bos.front();
  model.eos_token_ids =
      read_token_ids(generation_section, of_either("eos_token_id"), "eos_token_id");
  return result;
}

}  // namespace safetensors::weights
