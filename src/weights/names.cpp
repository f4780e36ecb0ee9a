#include "weights/names.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <set>
#include <utility>

namespace safetensors::weights {
namespace {

/// A module's name in files, and its canonical name.
struct Rule {
  std::string_view source;
  std::string_view canonical;
};

const Rule* find(std::span<const Rule> rules, std::string_view source) noexcept {
  const auto found = std::ranges::find(rules, source, &Rule::source);
  return found == rules.end() ? nullptr : &*found;
}

// Modules of Hugging Face below "layers.n.", as transformers names them; a comment names the models
// that introduced a spelling. What post_attention_layernorm means depends on its layer.
constexpr Rule kHfLayer[] = {
    {"input_layernorm", "attention_norm"},
    {"self_attn.q_proj", "attention.q"},
    {"self_attn.k_proj", "attention.k"},
    {"self_attn.v_proj", "attention.v"},
    {"self_attn.qkv_proj", "attention.qkv"},  // Phi 3
    {"self_attn.o_proj", "attention.output"},
    {"self_attn.dense", "attention.output"},  // Phi 2
    {"self_attn.q_norm", "attention.q_norm"},
    {"self_attn.k_norm", "attention.k_norm"},
    {"self_attn.sinks", "attention.sinks"},   // gpt-oss
    {"self_attn.q_a_proj", "attention.q_a"},  // DeepSeek 2, 3
    {"self_attn.q_b_proj", "attention.q_b"},
    {"self_attn.q_a_layernorm", "attention.q_a_norm"},
    {"self_attn.kv_a_proj_with_mqa", "attention.kv_a"},
    {"self_attn.kv_a_layernorm", "attention.kv_a_norm"},
    {"self_attn.kv_b_proj", "attention.kv_b"},
    {"self_attn.embed_q", "attention.k_b"},  // MLX's halves of kv_b
    {"self_attn.unembed_out", "attention.v_b"},
    {"per_layer_input_gate", "per_layer.gate"},  // Gemma 3n, 4
    {"per_layer_projection", "per_layer.proj"},
    {"post_per_layer_input_norm", "per_layer.post_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},            // Gemma 2, 3
    {"post_feedforward_layernorm", "post_ffn_norm"},      // Gemma 2, 3, OLMo 2
    {"post_self_attn_layernorm", "post_attention_norm"},  // GLM 4
    {"post_mlp_layernorm", "post_ffn_norm"},              // GLM 4
    {"mlp.gate_proj", "ffn.gate"},
    {"mlp.up_proj", "ffn.up"},
    {"mlp.down_proj", "ffn.down"},
    {"mlp.gate_up_proj", "ffn.gate_up"},  // Phi 3, GLM 4
    {"mlp.fc1", "ffn.up"},
    {"mlp.fc2", "ffn.down"},
    {"mlp.gate", "ffn.router"},
    {"mlp.router", "ffn.router"},
    {"block_sparse_moe.gate", "ffn.router"},
    {"mlp.switch_mlp.gate_proj", "ffn.experts.gate"},
    {"mlp.switch_mlp.up_proj", "ffn.experts.up"},
    {"mlp.switch_mlp.down_proj", "ffn.experts.down"},
    {"block_sparse_moe.switch_mlp.gate_proj", "ffn.experts.gate"},
    {"block_sparse_moe.switch_mlp.up_proj", "ffn.experts.up"},
    {"block_sparse_moe.switch_mlp.down_proj", "ffn.experts.down"},
    {"mlp.experts.gate_proj", "ffn.experts.gate"},
    {"mlp.experts.up_proj", "ffn.experts.up"},
    {"mlp.experts.down_proj", "ffn.experts.down"},
    {"mlp.experts.gate_up_proj", "ffn.experts.gate_up"},
    {"mlp.shared_expert.gate_proj", "ffn.shared_expert.gate"},
    {"mlp.shared_expert.up_proj", "ffn.shared_expert.up"},
    {"mlp.shared_expert.down_proj", "ffn.shared_expert.down"},
    {"mlp.shared_experts.gate_proj", "ffn.shared_expert.gate"},  // DeepSeek 2, 3
    {"mlp.shared_experts.up_proj", "ffn.shared_expert.up"},
    {"mlp.shared_experts.down_proj", "ffn.shared_expert.down"},
    {"mlp.shared_expert_gate", "ffn.shared_expert_gate"},
};
// Matrices of an expert; w1 to w3 are Mixtral's names.
constexpr Rule kHfExpert[] = {{"gate_proj", "gate"}, {"up_proj", "up"}, {"down_proj", "down"},
                              {"w1", "gate"},        {"w3", "up"},      {"w2", "down"}};
constexpr Rule kHfGlobal[] = {{"embed_tokens", "token_embedding"},
                              {"norm", "output_norm"},
                              {"final_layernorm", "output_norm"}};
// What comes before the modules, most specific first: models of images and text have the language
// model in a module of its own.
constexpr std::string_view kHfPrefixes[] = {"model.language_model.", "language_model.model.",
                                            "model.", ""};

// Modules of GGUF below "blk.n.", as llama.cpp's LLM_TENSOR_NAMES has them. What
// post_attention_norm and ffn_up mean depends on their layer.
constexpr Rule kGgufLayer[] = {
    {"attn_norm", "attention_norm"},
    {"attn_q", "attention.q"},
    {"attn_k", "attention.k"},
    {"attn_v", "attention.v"},
    {"attn_qkv", "attention.qkv"},
    {"attn_output", "attention.output"},
    {"attn_q_norm", "attention.q_norm"},
    {"attn_k_norm", "attention.k_norm"},
    {"attn_sinks", "attention.sinks"},
    {"attn_q_a", "attention.q_a"},
    {"attn_q_b", "attention.q_b"},
    {"attn_q_a_norm", "attention.q_a_norm"},
    {"attn_kv_a_mqa", "attention.kv_a"},
    {"attn_kv_a_norm", "attention.kv_a_norm"},
    {"attn_kv_b", "attention.kv_b"},
    {"attn_k_b", "attention.k_b"},
    {"attn_v_b", "attention.v_b"},
    {"inp_gate", "per_layer.gate"},
    {"proj", "per_layer.proj"},
    {"post_norm", "per_layer.post_norm"},
    {"ffn_norm", "ffn_norm"},
    {"post_ffw_norm", "post_ffn_norm"},
    {"ffn_gate", "ffn.gate"},
    {"ffn_up", "ffn.up"},
    {"ffn_down", "ffn.down"},
    {"ffn_gate_inp", "ffn.router"},
    {"ffn_gate_exps", "ffn.experts.gate"},
    {"ffn_up_exps", "ffn.experts.up"},
    {"ffn_down_exps", "ffn.experts.down"},
    {"ffn_gate_up_exps", "ffn.experts.gate_up"},
    {"ffn_gate_shexp", "ffn.shared_expert.gate"},
    {"ffn_up_shexp", "ffn.shared_expert.up"},
    {"ffn_down_shexp", "ffn.shared_expert.down"},
    {"ffn_gate_inp_shexp", "ffn.shared_expert_gate"},
};
constexpr Rule kGgufGlobal[] = {{"token_embd", "token_embedding"},
                                {"output_norm", "output_norm"},
                                {"output", "output"},
                                {"rope_freqs", "rope_freqs"},
                                {"rope_factors_long", "rope_factors_long"},
                                {"rope_factors_short", "rope_factors_short"}};

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Removes the number of a layer or expert from the front: at most six digits without a leading
/// zero, then a dot. Returns an empty text if there is none.
std::string_view take_number(std::string_view& text) noexcept {
  std::size_t digits = 0;
  while (digits < text.size() && is_digit(text[digits])) ++digits;
  if (digits == 0 || digits > 6 || (digits > 1 && text[0] == '0')) return {};
  if (digits == text.size() || text[digits] != '.') return {};
  const std::string_view number = text.substr(0, digits);
  text.remove_prefix(digits + 1);
  return number;
}

/// Splits "layers.12.mlp.fc1" into {"12", "mlp.fc1"}. Both are empty outside the layers.
struct InLayer {
  std::string_view number;
  std::string_view module;
};
InLayer in_layer(std::string_view module, std::string_view layers) noexcept {
  if (!module.starts_with(layers)) return {};
  module.remove_prefix(layers.size());
  const std::string_view number = take_number(module);
  return number.empty() ? InLayer{} : InLayer{number, module};
}

/// Returns the prefix of the module that contains the embedding.
std::string_view hf_prefix(std::span<const std::string_view> names) {
  for (const std::string_view prefix : kHfPrefixes) {
    if (std::ranges::find(names, std::string(prefix) + "embed_tokens.weight") != names.end()) {
      return prefix;
    }
  }
  return "model.";
}

/// Maps "mlp.experts.7.gate_proj" to "ffn.experts.7.gate"; other modules to an empty name.
std::string hf_expert(std::string_view module) {
  for (const std::string_view start : {"mlp.experts.", "block_sparse_moe.experts."}) {
    if (!module.starts_with(start)) continue;
    std::string_view rest = module.substr(start.size());
    const std::string_view number = take_number(rest);
    const Rule* rule = number.empty() ? nullptr : find(kHfExpert, rest);
    if (rule == nullptr) continue;
    return "ffn.experts." + std::string(number) + "." + std::string(rule->canonical);
  }
  return {};
}

/// Maps "ffn_gate.7", the spelling of older files, to "ffn.experts.7.gate"; other modules to an
/// empty name.
std::string gguf_expert(std::string_view module) {
  for (const std::string_view part : {"gate", "up", "down"}) {
    const std::string start = "ffn_" + std::string(part) + ".";
    if (!module.starts_with(start)) continue;
    const std::string closed = std::string(module.substr(start.size())) + ".";
    std::string_view rest = closed;
    const std::string_view number = take_number(rest);
    if (number.empty() || !rest.empty()) continue;
    return "ffn.experts." + std::string(number) + "." + std::string(part);
  }
  return {};
}

Mapped canonical(std::string_view number, std::string_view module, std::string_view param) {
  std::string name;
  if (!number.empty()) name = "layers." + std::string(number) + ".";
  name += module;
  if (!param.empty()) (name += '.') += param;
  return {Mapped::Kind::canonical, std::move(name)};
}

}  // namespace

NameParts split_param(std::string_view name) noexcept {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {name, {}};
  const std::string_view last = name.substr(dot + 1);
  for (const std::string_view param : {"weight", "bias", "scales", "biases", "global_scale"}) {
    if (last == param) return {name.substr(0, dot), last};
  }
  return {name, {}};
}

LayerModule split_layer(std::string_view canonical_module) noexcept {
  const InLayer in = in_layer(canonical_module, "layers.");
  if (in.number.empty()) return {canonical_module, {}};
  return {in.module, in.number};
}

std::vector<Mapped> map_hf_names(std::span<const std::string_view> names) {
  const std::string_view prefix = hf_prefix(names);
  const std::string layers = std::string(prefix) + "layers.";
  // post_attention_layernorm has two meanings. In most models it is the norm before the
  // feed-forward part. In layers that also have a norm after that part, it is a norm after
  // attention.
  std::set<std::string_view> sandwiched;  // a tree: untrusted names cannot make it slow
  for (const std::string_view name : names) {
    const InLayer in = in_layer(split_param(name).module, layers);
    if (in.module == "post_feedforward_layernorm") sandwiched.insert(in.number);
  }

  const auto map = [&](std::string_view name) -> Mapped {
    if (name.ends_with("rotary_emb.inv_freq")) return {Mapped::Kind::ignored, {}};
    const auto [module, param] = split_param(name);
    if (module == "lm_head" || module == "language_model.lm_head") {
      return canonical({}, "output", param);
    }
    if (module.starts_with(prefix)) {
      const Rule* global = find(kHfGlobal, module.substr(prefix.size()));
      if (global != nullptr) return canonical({}, global->canonical, param);
    }
    const InLayer in = in_layer(module, layers);
    if (in.number.empty()) return {};
    if (in.module == "post_attention_layernorm") {
      const bool after = sandwiched.contains(in.number);
      return canonical(in.number, after ? "post_attention_norm" : "ffn_norm", param);
    }
    if (const Rule* rule = find(kHfLayer, in.module)) {
      return canonical(in.number, rule->canonical, param);
    }
    constexpr std::string_view kBias = "_bias";  // gpt-oss: gate_up_proj_bias of the experts
    if (param.empty() && in.module.ends_with(kBias)) {
      const Rule* rule = find(kHfLayer, in.module.substr(0, in.module.size() - kBias.size()));
      if (rule != nullptr) return canonical(in.number, rule->canonical, "bias");
    }
    const std::string expert = hf_expert(in.module);
    return expert.empty() ? Mapped{} : canonical(in.number, expert, param);
  };
  std::vector<Mapped> mapped;
  mapped.reserve(names.size());
  for (const std::string_view name : names) mapped.push_back(map(name));
  return mapped;
}

std::vector<Mapped> map_gguf_names(std::span<const std::string_view> names,
                                   std::string_view architecture) {
  // What the meaning of post_attention_norm and ffn_up depends on.
  struct Layer {
    bool has_gate = false;
    bool has_norm_around_ffn = false;
  };
  constexpr std::string_view kLayers = "blk.";
  std::map<std::string_view, Layer> layers;
  for (const std::string_view name : names) {
    const InLayer in = in_layer(split_param(name).module, kLayers);
    if (in.number.empty()) continue;
    Layer& layer = layers[in.number];
    layer.has_gate |= in.module == "ffn_gate";
    layer.has_norm_around_ffn |= in.module == "ffn_norm" || in.module == "post_ffw_norm";
  }
  // In these architectures a layer without ffn_gate has gate and up in one matrix, named ffn_up.
  const bool fuses_gate_and_up = architecture == "phi3" || architecture == "glm4";

  const auto map = [&](std::string_view name) -> Mapped {
    const auto [module, param] = split_param(name);
    if (const Rule* global = find(kGgufGlobal, module)) {
      return canonical({}, global->canonical, param);
    }
    const InLayer in = in_layer(module, kLayers);
    if (in.number.empty()) return {};
    const Layer& layer = layers.at(in.number);
    if (in.module == "post_attention_norm") {
      return canonical(in.number, layer.has_norm_around_ffn ? "post_attention_norm" : "ffn_norm",
                       param);
    }
    if (in.module == "ffn_up" && fuses_gate_and_up && !layer.has_gate) {
      return canonical(in.number, "ffn.gate_up", param);
    }
    if (const Rule* rule = find(kGgufLayer, in.module)) {
      return canonical(in.number, rule->canonical, param);
    }
    const std::string expert = gguf_expert(in.module);
    return expert.empty() ? Mapped{} : canonical(in.number, expert, param);
  };
  std::vector<Mapped> mapped;
  mapped.reserve(names.size());
  for (const std::string_view name : names) mapped.push_back(map(name));
  return mapped;
}

bool name_less(std::string_view a, std::string_view b) noexcept {
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) {
        return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      }
      ++i;
      ++j;
      continue;
    }
    std::size_t a_end = i;
    std::size_t b_end = j;
    while (a_end < a.size() && is_digit(a[a_end])) ++a_end;
    while (b_end < b.size() && is_digit(b[b_end])) ++b_end;
    // Numbers have no leading zeros: the longer one is larger.
    const std::string_view x = a.substr(i, a_end - i);
    const std::string_view y = b.substr(j, b_end - j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
    i = a_end;
    j = b_end;
  }
  return a.size() - i < b.size() - j;
}

}  // namespace safetensors::weights
