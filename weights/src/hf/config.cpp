#include "hf/config.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/fail.hpp"
#include "config/json_section.hpp"
#include "config/rules.hpp"
#include "dequant/dequant.hpp"
#include "hf/quant_params.hpp"
#include "hf/rope.hpp"

namespace safetensors::weights {
namespace {

/// Reads mode, bits and group size of `quantization`, or of one of its modules.
QuantParams read_quant(const Json& json, std::string_view key, const std::filesystem::path& path) {
  const Section section(json, path);
  const std::optional<std::string> mode_name = section.text({"mode"});
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

/// Reads `quantization` (MLX) or `quantization_config` (Hugging Face, and newer MLX):
///
///     {"bits": 4, "group_size": 64, "mode": "affine",      the model's parameters
///      "model.layers.0.mlp": {"bits": 8, ...},             a module's own
///      "lm_head": false}                                   not quantised
///
/// A quantization_config with a `quant_method` is that of another scheme.
void read_quantization(const Section& section, const std::filesystem::path& path,
                       HfConfig& config) {
  const auto [value, key] = section.find({"quantization", "quantization_config"});
  if (value == nullptr) return;
  if (value->as_object() == nullptr) section.refuse(key, "an object", value->kind());
  const std::optional<std::string> method = Section(*value, path).text({"quant_method"});
  if (method && key == "quantization_config") {
    config.model.quantization_method = *method;
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

LayerKind layer_kind(std::string_view name) noexcept {
  struct Name {
    std::string_view text;
    LayerKind kind;
  };
  // Values of layer_types in transformers 5.23; "attention" and "mamba" are from older versions.
  constexpr Name kNames[] = {{"full_attention", LayerKind::full},
                             {"attention", LayerKind::full},
                             {"sliding_attention", LayerKind::sliding},
                             {"linear_attention", LayerKind::linear},
                             {"conv", LayerKind::conv},
                             {"recurrent", LayerKind::recurrent},
                             {"mamba", LayerKind::recurrent}};
  const auto* const found = std::ranges::find(kNames, name, &Name::text);
  return found == std::end(kNames) ? LayerKind::other : found->kind;
}

/// Reads the sizes of the model. The first key is that of most models; older ones have the others:
///
///     n_embd, n_layer, ...            GPT-2, GPT-J, Bloom, GPT BigCode
///     d_model, n_layers, ...          MPT, DBRX
///     num_layers, ffn_hidden_size, .. ChatGLM, Falcon
///     model_dim, ...                  OpenELM
void read_sizes(const Section& section, ModelConfig& model) {
  model.dim = section.integer({"hidden_size", "n_embd", "d_model", "model_dim"});
  model.n_layers = section.integer(
      {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"});
  section.per_layer({"num_attention_heads", "n_head", "n_heads", "num_query_heads"}, model.n_heads,
                    model.n_heads_of_layers);
  section.per_layer({"num_key_value_heads", "num_kv_heads", "multi_query_group_num"},
                    model.n_kv_heads, model.n_kv_heads_of_layers);
  // Falcon and GPT BigCode: one head of keys and values for all queries.
  const bool is_shared = section.boolean("multi_query").value_or(false) &&
                         !section.boolean("new_decoder_architecture").value_or(false);
  if (is_shared) model.n_kv_heads = 1;
  model.head_dim = section.integer({"head_dim", "kv_channels", "d_kv"});
  section.per_layer({"intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_hidden_size",
                     "ffn_dim", "d_ff"},
                    model.ffn_dim, model.ffn_dim_of_layers);
  // Llama 4
  if (section.find({"intermediate_size_mlp"}).value != nullptr) {
    model.moe_ffn_dim = section.integer({"intermediate_size"}).value_or(0);
  }
  // DBRX
  if (const auto attention = section.object("attn_config"); attention && !model.n_kv_heads) {
    model.n_kv_heads = attention->integer({"kv_n_heads"});
  }
  if (const auto ffn = section.object("ffn_config")) {
    if (!model.ffn_dim) model.ffn_dim = ffn->integer({"ffn_hidden_size"});
    if (model.n_experts == 0) model.n_experts = ffn->integer({"moe_num_experts"}).value_or(0);
    if (model.n_experts_used == 0) model.n_experts_used = ffn->integer({"moe_top_k"}).value_or(0);
  }
  fill_heads(model);
  model.vocab_size = section.integer({"vocab_size", "padded_vocab_size"});
  model.max_seq_len = section.integer({"max_position_embeddings", "n_positions", "max_seq_len",
                                       "seq_length", "max_context_length"});
  model.norm_eps = section.number({"rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon",
                                   "norm_epsilon", "norm_eps", "layernorm_epsilon"});
  model.sliding_window = section.integer({"sliding_window", "sliding_window_size"}).value_or(0);
}

void read_attention(const Section& section, ModelConfig& model) {
  model.v_head_dim = section.integer({"v_head_dim"});
  model.q_lora_rank = section.integer({"q_lora_rank"});
  model.kv_lora_rank = section.integer({"kv_lora_rank"});
  model.qk_nope_head_dim = section.integer({"qk_nope_head_dim"});
  model.qk_rope_head_dim = section.integer({"qk_rope_head_dim"});
  const bool is_older = section.find({"layer_types"}).value == nullptr;
  const std::string_view kinds = is_older ? "layers_block_type" : "layer_types";
  for (const Json& kind : section.array(kinds)) {
    if (kind.as_string() == nullptr) section.refuse(kinds, "a string", kind.kind());
    model.layer_kinds.push_back(layer_kind(*kind.as_string()));
  }
  const auto [pattern, key] = section.find({"sliding_window_pattern", "_sliding_window_pattern"});
  // Some models have text here, such as EXAONE 4 with "LLLG".
  const bool is_number = pattern != nullptr && pattern->as_number().has_value();
  if (is_number) model.sliding_window_pattern = section.integer_of(*pattern, key);
}

void read_experts(const Section& section, ModelConfig& model) {
  model.n_experts = section
                        .most({"num_local_experts", "num_experts", "n_routed_experts",
                               "moe_num_experts", "moe_num_primary_experts"})
                        .value_or(0);
  model.n_experts_used =
      section
          .most({"num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk",
                 "moe_top_k", "moe_k", "moe_num_active_primary_experts"})
          .value_or(0);
  model.moe_ffn_dim =
      section.most({"moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size"})
          .value_or(0);
  model.shared_ffn_dim =
      section.integer({"shared_expert_intermediate_size", "shared_intermediate_size",
                       "moe_shared_expert_intermediate_size", "share_expert_dim"});
  model.n_shared_experts = section.most(
      {"n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"});
  model.first_dense_layers =
      section.integer({"first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"});
  model.expert_weights_scale =
      section.number({"routed_scaling_factor", "route_scale", "moe_router_scaling_factor"});
  model.expert_gating = section.text({"scoring_func", "score_func", "moe_router_activation_func"});
}

/// Factors that models apply, converted to one convention: multiply.
///
///     query_scale      Granite: attention_multiplier; Gemma: 1 / sqrt(query_pre_attn_scalar)
///     embedding_scale  Granite: embedding_multiplier; MiniCPM: scale_emb
///     residual_scale   Granite: residual_multiplier; MiniCPM: scale_depth / sqrt(n_layers)
///     logit_scale      Cohere: logit_scale; Granite: 1 / logits_scaling;
///                      MiniCPM: dim_model_base / dim
void read_scales(const Section& section, ModelConfig& model) {
  model.activation = section.text({"hidden_activation", "hidden_act", "activation_function"});
  model.query_scale = section.number({"attention_multiplier"});
  const std::optional<double> scalar = section.number({"query_pre_attn_scalar"});
  if (scalar && *scalar > 0.0) model.query_scale = 1.0 / std::sqrt(*scalar);
  model.embedding_scale = section.number({"embedding_multiplier", "scale_emb"});
  model.residual_scale = section.number({"residual_multiplier"});
  const std::optional<double> depth = section.number({"scale_depth"});
  if (depth && model.n_layers && *model.n_layers > 0) {
    model.residual_scale = *depth / std::sqrt(static_cast<double>(*model.n_layers));
  }
  model.logit_scale = section.number({"logit_scale"});
  const std::optional<double> divisor = section.number({"logits_scaling"});
  if (divisor && *divisor != 0.0) model.logit_scale = 1.0 / *divisor;
  const std::optional<double> base = section.number({"dim_model_base"});
  if (base && model.dim && *model.dim > 0) {
    model.logit_scale = *base / static_cast<double>(*model.dim);
  }
}

/// Reads a token id, or a list of them.
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

HfConfig read_hf_config(Json config, const Json* generation, const std::filesystem::path& path) {
  HfConfig result;
  ModelConfig& model = result.model;
  model.raw = std::make_shared<const Json>(std::move(config));
  const Json& json = *model.raw;
  if (json.as_object() == nullptr) {
    fail(Errc::config, path, {}, "an object was expected, not " + std::string(json.kind()));
  }
  const Section outer(json, path);
  // Models of images and text have the language model's configuration in text_config.
  const Json* inner_json = json.find("text_config");
  const bool nested = outer.find({"hidden_size"}).value == nullptr && inner_json != nullptr &&
                      inner_json->as_object() != nullptr;
  const Section section = nested ? Section(*inner_json, path) : outer;
  const auto of_either = [&](std::string_view key) {
    return section.find({key}).value != nullptr ? section : outer;
  };

  model.architecture = section.text({"model_type"});
  read_experts(section, model);
  read_sizes(section, model);
  model.attn_logit_softcap = section.number({"attn_logit_softcapping"});
  model.final_logit_softcap = section.number({"final_logit_softcapping"});

  read_rope(section, model);
  read_attention(section, model);
  read_scales(section, model);
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
