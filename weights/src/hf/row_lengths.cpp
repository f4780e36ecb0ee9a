#include "hf/row_lengths.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "config/rules.hpp"
#include "names/tables.hpp"

namespace safetensors::weights {
namespace {

using Length = std::optional<std::uint64_t>;

/// Model types whose q has twice the rows: the second half computes a gate of attention's output.
constexpr std::string_view kGatedQ[] = {"qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
                                        "qwen3_5_text"};

/// Modules that read the hidden state, besides gate and up.
constexpr std::string_view kReadHidden[] = {
    "attention.q",   "attention.k",    "attention.v", "attention.qkv",          "attention.gate",
    "attention.q_a", "attention.kv_a", "ffn.router",  "ffn.shared_expert_gate", "ssm.in",
    "ssm.ba",        "ssm.alpha",      "ssm.beta",
};

template <std::size_t n>
bool is_in(const std::string_view (&list)[n], std::string_view text) noexcept {
  return std::ranges::find(list, text) != std::end(list);
}

Length product(const Length& a, const Length& b) {
  return a && b ? checked_multiply(*a, *b) : std::nullopt;
}

/// Returns a / b if that is exact.
Length quotient(const Length& a, std::uint64_t b) {
  return a && b != 0 && *a % b == 0 ? Length(*a / b) : std::nullopt;
}

Length length_of(const std::optional<std::int64_t>& value) {
  return value && *value > 0 ? Length(static_cast<std::uint64_t>(*value)) : std::nullopt;
}

}  // namespace

/// The pieces of a module's name: for "layers.4.ffn.experts.2.down" they are layer "4", module
/// "ffn.experts.2.down", block "ffn.experts.2" and leaf "down".
struct RowLengths::Place {
  explicit Place(std::string_view canonical) {
    const LayerModule in = split_layer(split_param(canonical).module);
    layer = in.layer;
    module = in.module;
    const std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return;
    block = module.substr(0, dot);
    leaf = module.substr(dot + 1);
  }
  [[nodiscard]] bool is_ffn() const noexcept {
    return block == "ffn" || block == "ffn.shared_expert" || is_routed();
  }
  [[nodiscard]] bool is_routed() const noexcept {
    return block == "ffn.experts" || block.starts_with("ffn.experts.");
  }
  /// Returns whether this is gate, up, or both in one matrix, of any feed-forward block.
  [[nodiscard]] bool is_up() const noexcept {
    return is_ffn() && (leaf == "gate" || leaf == "up" || leaf == "gate_up");
  }
  [[nodiscard]] bool is_down() const noexcept { return is_ffn() && leaf == "down"; }
  [[nodiscard]] bool reads_hidden() const noexcept { return is_up() || is_in(kReadHidden, module); }
  [[nodiscard]] bool is_vocabulary() const noexcept {
    return layer.empty() && (module == "token_embedding" || module == "output");
  }

  std::string_view layer;
  std::string_view module;
  std::string_view block;
  std::string_view leaf;
};

RowLengths::RowLengths(std::span<const SourceTensor> tensors, std::span<const Mapped> names,
                       const ModelConfig& config)
    : tensors_(tensors), names_(names), config_(config) {
  // Tensors without a canonical name share the empty name, which nothing looks up.
  (void)index_.build(names.size(),
                     [&](std::size_t i) -> std::string_view { return names[i].name; });
  const auto type = find_hf_model_type(config.architecture.value_or(""));
  norms_tell_ = type && type->norms_tell;
}

RowEvidence RowLengths::of(std::string_view canonical) const {
  const Place place(canonical);
  return {known(place), likely(place), from_config(place)};
}

const safetensors::TensorInfo* RowLengths::find(const Place& place, std::string_view module,
                                                std::string_view ending) const {
  std::string name;
  if (!place.layer.empty()) name = "layers." + std::string(place.layer) + ".";
  name += std::string(module) + std::string(ending);
  const auto found =
      index_.find(name, [&](std::size_t i) -> std::string_view { return names_[i].name; });
  return found ? tensors_[*found].info : nullptr;
}

/// Returns the number of rows: the last axis but one, because matrices may be stacked.
Length RowLengths::rows(const Place& place, std::string_view module) const {
  const safetensors::TensorInfo* info = find(place, module);
  if (info == nullptr || info->shape.size() < 2) return std::nullopt;
  return info->shape[info->shape.size() - 2];
}

Length RowLengths::norm_length(const Place& place, std::string_view module) const {
  const safetensors::TensorInfo* info = find(place, module);
  return info != nullptr && info->shape.size() == 1 ? Length(info->shape[0]) : std::nullopt;
}

/// Returns the number of values that a feed-forward block passes to its down matrix.
Length RowLengths::rows_of_up(const Place& place) const {
  const std::string block(place.block);
  if (const Length up = rows(place, block + ".up")) return up;
  if (const Length gate = rows(place, block + ".gate")) return gate;
  return quotient(rows(place, block + ".gate_up"), 2);
}

/// Returns the row length of k_b in MLX, [heads, rank, values of a head without rotation]: the
/// values of a head of q, less those with rotation, which kv_a adds to the rank.
Length RowLengths::nope_length(const Place& place) const {
  const safetensors::TensorInfo* own = find(place, "attention.k_b");
  Length q = rows(place, "attention.q_b");
  if (!q) q = rows(place, "attention.q");
  const Length kv = rows(place, "attention.kv_a");
  const Length rank = norm_length(place, "attention.kv_a_norm");
  const std::uint64_t heads = own != nullptr && own->shape.size() == 3 ? own->shape[0] : 0;
  const Length head = quotient(q, heads);
  if (!head || !kv || !rank || *kv < *rank || *head <= *kv - *rank) {
    return length_of(config_.qk_nope_head_dim);
  }
  return *head - (*kv - *rank);
}

/// Returns the number of values that linear attention passes to its output: A_log has a number for
/// each head, and the norm the length of one. State spaces with these names have other norms.
Length RowLengths::linear_values(const Place& place) const {
  const safetensors::TensorInfo* heads = find(place, "ssm.a", "");
  if (heads == nullptr || heads->shape.size() != 1 ||
      heads->name.find("linear_attn.") == std::string_view::npos) {
    return std::nullopt;
  }
  return product(heads->shape[0], norm_length(place, "ssm.norm"));
}

Length RowLengths::known(const Place& place) const {
  if (place.is_down()) return rows_of_up(place);
  if (place.module == "per_layer.proj") return rows(place, "per_layer.gate");
  if (place.module == "attention.q_b") return norm_length(place, "attention.q_a_norm");
  if (place.module == "attention.kv_b" || place.module == "attention.v_b") {
    return norm_length(place, "attention.kv_a_norm");
  }
  if (place.module == "attention.k_b") return nope_length(place);
  if (place.module == "ssm.out") return linear_values(place);
  if (place.module == "attention.output") {
    // Shape in MLX: [heads, values of a head, rank]
    const safetensors::TensorInfo* values = find(place, "attention.v_b");
    if (values == nullptr || values->shape.size() != 3) return std::nullopt;
    return checked_multiply(values->shape[0], values->shape[1]);
  }
  if (!norms_tell_ || place.layer.empty() || !place.reads_hidden()) return std::nullopt;
  if (const Length norm = norm_length(place, "attention_norm")) return norm;
  if (const Length norm = norm_length(place, "ffn_norm")) return norm;
  return norm_length(Place("output_norm.weight"), "output_norm");
}

/// Returns the length of attention's output: all heads of q, each with as many values as a head of
/// v. With grouped queries, k and v have fewer heads than q:
///   rows of v / (heads of k) * (heads of q) = rows of v * rows of q / rows of k
Length RowLengths::rows_of_values(const Place& place) const {
  Length q = rows(place, "attention.q");
  const bool gated = config_.architecture && is_in(kGatedQ, *config_.architecture);
  if (gated) q = quotient(q, 2);
  const Length k = rows(place, "attention.k");
  if (!k) {
    // Without k, the layer shares the keys and values of another one. With kv_a, they have a low
    // rank, which implies nothing about the output.
    return find(place, "attention.kv_a") == nullptr ? q : std::nullopt;
  }
  const Length v = rows(place, "attention.v");
  return quotient(product(v ? v : k, q), *k);
}

Length RowLengths::likely(const Place& place) const {
  if (place.module == "attention.output") return rows_of_values(place);
  return place.is_vocabulary() ? norm_length(place, "output_norm") : std::nullopt;
}

Length RowLengths::from_config(const Place& place) const {
  if (place.is_vocabulary() || place.reads_hidden()) return length_of(config_.dim);
  if (place.module == "attention.output") {
    const auto heads = of_layer(config_.n_heads_of_layers, config_.n_heads, place.layer);
    return product(length_of(heads),
                   length_of(config_.v_head_dim ? config_.v_head_dim : config_.head_dim));
  }
  if (!place.is_down()) return std::nullopt;
  const Length dense = length_of(of_layer(config_.ffn_dim_of_layers, config_.ffn_dim, place.layer));
  if (place.block == "ffn") return dense;
  if (place.block == "ffn.shared_expert") return length_of(config_.shared_ffn_dim);
  const Length routed = length_of(config_.moe_ffn_dim);
  return routed ? routed : dense;
}

}  // namespace safetensors::weights
