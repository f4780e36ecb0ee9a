#include "names/names.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <optional>
#include <utility>

#include "names/tables.hpp"

namespace safetensors::weights {
namespace {

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Returns how many bytes two names have in common at their beginning.
std::size_t common_prefix(std::string_view a, std::string_view b) noexcept {
  const std::size_t size = std::min(a.size(), b.size());
  std::size_t i = 0;
  for (std::uint64_t x = 0, y = 0; i + sizeof x <= size; i += sizeof x) {
    std::memcpy(&x, a.data() + i, sizeof x);
    std::memcpy(&y, b.data() + i, sizeof y);
    if (x != y) break;
  }
  while (i < size && a[i] == b[i]) ++i;
  return i;
}

/// Returns whether a part of a name is the number of a layer or expert: at most six digits without
/// a leading zero.
bool is_number(std::string_view part) noexcept {
  if (part.empty() || part.size() > 6 || (part.size() > 1 && part[0] == '0')) return false;
  return std::ranges::all_of(part, is_digit);
}

/// Splits "layers.12.mlp.fc1" into {"12", "mlp.fc1"}. Both are empty outside the layers.
struct InLayer {
  std::string_view number;
  std::string_view module;
};
InLayer in_layer(std::string_view module, std::string_view layers) noexcept {
  if (!module.starts_with(layers)) return {};
  module.remove_prefix(layers.size());
  const std::size_t dot = module.find('.');
  if (dot == std::string_view::npos || !is_number(module.substr(0, dot))) return {};
  return {module.substr(0, dot), module.substr(dot + 1)};
}

/// Looks up modules in a table of tables.hpp, and spells their canonical names.
class Names {
 public:
  using Table = std::optional<std::string_view> (*)(std::string_view) noexcept;
  explicit Names(Table table) : table_(table) {}

  /// Returns the canonical module, with `#` in place of numbers.
  std::optional<std::string_view> find(std::string_view module) {
    // Numbers that are parts of a name are replaced; "decoder.block.#.layer.0" and a few others
    // keep those after the first, or all.
    for (const std::size_t most : {std::string_view::npos, std::size_t{1}, std::size_t{0}}) {
      set_pattern(module, most);
      if (const auto found = table_(pattern_)) return found;
      if (numbers_.empty()) break;
    }
    return std::nullopt;
  }

  /// Spells what find() returned for the last module.
  [[nodiscard]] Mapped spell(std::string_view canonical, std::string_view param) const {
    if (canonical.empty()) return {Mapped::Kind::ignored, {}};
    std::string name;
    std::size_t next = 0;
    for (const char c : canonical) {
      if (c == '#' && next < numbers_.size()) {
        name += numbers_[next++];
      } else {
        name += c;
      }
    }
    if (!param.empty()) (name += '.') += param;
    return {Mapped::Kind::canonical, std::move(name)};
  }

 private:
  /// Copies a module, with `#` in place of its first `most` numbers.
  void set_pattern(std::string_view module, std::size_t most) {
    pattern_.clear();
    numbers_.clear();
    while (!module.empty()) {
      const std::size_t dot = std::min(module.find('.'), module.size());
      const std::string_view part = module.substr(0, dot);
      if (numbers_.size() < most && is_number(part)) {
        numbers_.push_back(part);
        pattern_ += '#';
      } else {
        pattern_ += part;
      }
      if (dot < module.size()) pattern_ += '.';
      module.remove_prefix(std::min(dot + 1, module.size()));
    }
  }

  Table table_;
  std::string pattern_;
  std::vector<std::string_view> numbers_;
};

/// Where the language model of a checkpoint begins, most specific first: models of images and text
/// have it in a module of its own.
constexpr std::string_view kHfPrefixes[] = {"model.language_model.",
                                            "language_model.model.",
                                            "model.text_model.",
                                            "model.",
                                            "language_model.",
                                            "bert.",
                                            "roberta.",
                                            "distilbert."};

/// Returns the prefix of the module that contains the embedding, else of any tensor.
std::string_view hf_prefix(std::span<const std::string_view> names) {
  for (const std::string_view prefix : kHfPrefixes) {
    if (std::ranges::find(names, std::string(prefix) + "embed_tokens.weight") != names.end()) {
      return prefix;
    }
  }
  if (std::ranges::find(names, "embed_tokens.weight") != names.end()) return {};
  for (const std::string_view prefix : kHfPrefixes) {
    const auto has_prefix = [&](std::string_view name) { return name.starts_with(prefix); };
    if (std::ranges::any_of(names, has_prefix)) return prefix;
  }
  return {};
}

/// Returns whether this module may be outside of the language model.
bool is_beside_body(std::string_view canonical) noexcept {
  return canonical == "output" || canonical.starts_with("classifier") || is_of_tower(canonical);
}

/// What the meaning of some names depends on, by layer.
struct Layer {
  bool has_gate = false;
  bool has_norm_around_ffn = false;
  bool has_residual_ffn = false;
  bool has_receptance = false;
};
using Layers = std::map<std::string_view, Layer>;  // a tree: untrusted names cannot make it slow

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

std::string_view inner_name(std::string_view module) noexcept {
  for (const std::string_view prefix :
       {"model.language_model.", "language_model.model.", "language_model.", "model."}) {
    if (module.starts_with(prefix)) return module.substr(prefix.size());
  }
  return module;
}

LayerModule split_layer(std::string_view canonical_module) noexcept {
  const InLayer in = in_layer(canonical_module, "layers.");
  if (in.number.empty()) return {canonical_module, {}};
  return {in.module, in.number};
}

bool is_of_tower(std::string_view canonical) noexcept {
  return canonical.starts_with("vision.") || canonical.starts_with("audio.") ||
         canonical.starts_with("projector.");
}

std::vector<Mapped> map_hf_names(std::span<const std::string_view> names) {
  const std::string_view prefix = hf_prefix(names);
  const std::string in_layers = std::string(prefix) + "layers.";
  Layers layers;
  for (const std::string_view name : names) {
    const InLayer in = in_layer(split_param(name).module, in_layers);
    if (in.module == "post_feedforward_layernorm" || in.module == "pre_mlp_layernorm") {
      layers[in.number].has_norm_around_ffn = true;
    } else if (in.module == "residual_layernorm") {
      layers[in.number].has_residual_ffn = true;
    } else if (in.module == "attention.r_proj") {
      layers[in.number].has_receptance = true;
    }
  }
  // In most models post_attention_layernorm is the norm before the feed-forward part. In layers
  // that also have a norm before or after that part, it is a norm after attention; in those with
  // a dense part beside the experts (Arctic), it is the experts' norm.
  const auto norm_after_attention = [&](std::string_view number) -> std::string_view {
    const auto layer = layers.find(number);
    if (layer == layers.end()) return "layers.#.ffn_norm";
    return layer->second.has_residual_ffn ? "layers.#.ffn.experts.norm"
                                          : "layers.#.post_attention_norm";
  };

  // RWKV 7 has a receptance instead of the queries of attention.
  const auto of_time_mix = [&](const InLayer& in) -> std::optional<std::string_view> {
    const auto layer = layers.find(in.number);
    if (layer == layers.end() || !layer->second.has_receptance) return std::nullopt;
    if (in.module == "attention.k_proj") return "layers.#.rwkv.time_mix_key";
    if (in.module == "attention.v_proj") return "layers.#.rwkv.time_mix_value";
    if (in.module == "attention.o_proj") return "layers.#.rwkv.time_mix_output";
    return std::nullopt;
  };

  Names table(find_hf_name);
  const auto find = [&](std::string_view module) -> std::optional<std::string_view> {
    if (module.starts_with(prefix)) {
      const auto found = table.find(module.substr(prefix.size()));
      if (found) return found;
    }
    for (const std::string_view outer : {"", "model.", "language_model."}) {
      if (!module.starts_with(outer)) continue;
      const auto found = table.find(module.substr(outer.size()));
      if (found && is_beside_body(*found)) return found;
    }
    return std::nullopt;
  };
  const auto map = [&](std::string_view name) -> Mapped {
    if (name.ends_with("rotary_emb.inv_freq")) return {Mapped::Kind::ignored, {}};
    const auto [module, param] = split_param(name);
    if (const auto found = find(module)) {
      const InLayer in = in_layer(module, in_layers);
      if (in.module == "post_attention_layernorm") {
        return table.spell(norm_after_attention(in.number), param);
      }
      return table.spell(of_time_mix(in).value_or(*found), param);
    }
    constexpr std::string_view kBias = "_bias";  // gate_up_proj_bias of the experts, dt_bias
    if (!param.empty() || !module.ends_with(kBias)) return {};
    const auto found = find(module.substr(0, module.size() - kBias.size()));
    return found ? table.spell(*found, "bias") : Mapped{};
  };
  std::vector<Mapped> mapped;
  mapped.reserve(names.size());
  for (const std::string_view name : names) mapped.push_back(map(name));
  return mapped;
}

std::vector<Mapped> map_gguf_names(std::span<const std::string_view> names,
                                   std::string_view architecture) {
  constexpr std::string_view kLayers = "blk.";
  Layers layers;
  for (const std::string_view name : names) {
    const InLayer in = in_layer(split_param(name).module, kLayers);
    if (in.number.empty()) continue;
    Layer& layer = layers[in.number];
    layer.has_gate |= in.module == "ffn_gate";
    layer.has_norm_around_ffn |= in.module == "ffn_norm" || in.module == "post_ffw_norm";
  }
  const auto known = find_gguf_architecture(architecture);
  const bool fuses_gate_and_up = known && known->fuses_gate_and_up;

  Names table(find_gguf_name);
  const auto map = [&](std::string_view name) -> Mapped {
    auto [module, param] = split_param(name);
    // Scales, and the two matrices of an adapter, belong to a module.
    for (const std::string_view end : {"scale", "input_scale", "weight.lora_a", "weight.lora_b"}) {
      if (!param.empty() || !module.ends_with(end)) continue;
      const std::size_t dot = module.size() - end.size();
      if (dot == 0 || module[dot - 1] != '.') continue;
      param = module.substr(dot);
      module = module.substr(0, dot - 1);
    }
    const auto found = table.find(module);
    if (!found) return {};
    const InLayer in = in_layer(module, kLayers);
    if (in.module == "post_attention_norm" && !layers[in.number].has_norm_around_ffn) {
      return table.spell("layers.#.ffn_norm", param);
    }
    if (in.module == "ffn_up" && fuses_gate_and_up && !layers[in.number].has_gate) {
      return table.spell("layers.#.ffn.gate_up", param);
    }
    return table.spell(*found, param);
  };
  std::vector<Mapped> mapped;
  mapped.reserve(names.size());
  for (const std::string_view name : names) mapped.push_back(map(name));
  return mapped;
}

bool name_less(std::string_view a, std::string_view b) noexcept {
  // Most names begin alike. A number is compared from its first digit on.
  std::size_t i = common_prefix(a, b);
  while (i > 0 && is_digit(a[i - 1])) --i;
  std::size_t j = i;
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
