#include "hf/rope.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "names/tables.hpp"

namespace safetensors::weights {
namespace {

// Where config.json has the parameters of rotary embedding:
//
//     transformers 4   "rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}
//     transformers 5   "rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}
//     two kinds of     "rope_parameters": {"full_attention": {"rope_theta": 1e6, ...},
//     attention                            "sliding_attention": {"rope_theta": 1e4, ...}}

/// Returns the object with the scaling of the layers with full attention.
std::optional<Section> scaling_section(const Section& config) {
  std::optional<Section> rope = config.object("rope_scaling");
  if (!rope) rope = config.object("rope_parameters");
  if (!rope) return std::nullopt;
  const std::optional<Section> full = rope->object("full_attention");
  return full ? full : rope;
}

std::optional<RopeScaling> read_scaling(const Section& config) {
  const std::optional<Section> rope = scaling_section(config);
  if (!rope) return std::nullopt;
  RopeScaling scaling;
  scaling.type = rope->text({"rope_type", "type"}).value_or("");
  if (scaling.type.empty() || scaling.type == "default") return std::nullopt;
  scaling.factor = rope->number({"factor"});
  scaling.original_max_position_embeddings = rope->integer({"original_max_position_embeddings"});
  if (!scaling.original_max_position_embeddings) {  // Phi 3
    scaling.original_max_position_embeddings = config.integer({"original_max_position_embeddings"});
  }
  scaling.low_freq_factor = rope->number({"low_freq_factor"});
  scaling.high_freq_factor = rope->number({"high_freq_factor"});
  scaling.attention_factor = rope->number({"attention_factor"});
  scaling.beta_fast = rope->number({"beta_fast"});
  scaling.beta_slow = rope->number({"beta_slow"});
  scaling.mscale = rope->number({"mscale"});
  scaling.mscale_all_dim = rope->number({"mscale_all_dim"});
  scaling.long_factor = rope->numbers("long_factor");
  scaling.short_factor = rope->numbers("short_factor");
  return scaling;
}

/// Returns the value of the first layer of a kind, from rope_theta's list with one for each layer
/// (Step 3.5).
std::optional<double> theta_of_kind(const Section& config, std::string_view kind) {
  const Json* value = config.find({"rope_theta"}).value;
  if (value == nullptr || value->as_array() == nullptr) return std::nullopt;
  const std::vector<double> thetas = config.numbers("rope_theta");
  const std::span<const Json> kinds = config.array("layer_types");
  const auto layer = std::ranges::find_if(kinds, [&](const Json& name) {
    return name.as_string() != nullptr && *name.as_string() == kind;
  });
  const auto index = static_cast<std::size_t>(layer - kinds.begin());
  return layer != kinds.end() && index < thetas.size() ? std::optional(thetas[index])
                                                       : std::nullopt;
}

/// The base of the angles: element pair i turns by position * theta^(-2i/d).
std::optional<double> read_theta(const Section& config) {
  const Json* value = config.find({"rope_theta"}).value;
  if (value != nullptr && value->as_array() != nullptr) {
    return theta_of_kind(config, "full_attention");
  }
  if (const auto theta = config.number({"rope_theta", "global_rope_theta", "rotary_emb_base"})) {
    return theta;
  }
  const std::optional<Section> rope = config.object("rope_parameters");
  if (!rope) return std::nullopt;
  if (const auto theta = rope->number({"rope_theta"})) return theta;
  const std::optional<Section> full = rope->object("full_attention");
  return full ? full->number({"rope_theta"}) : std::nullopt;
}

/// The base in layers with a sliding window: of Gemma 3, ModernBERT, MiMo 2 or Step 3.5.
std::optional<double> read_local_theta(const Section& config) {
  if (const auto theta =
          config.number({"rope_local_base_freq", "local_rope_theta", "swa_rope_theta"})) {
    return theta;
  }
  if (const auto theta = theta_of_kind(config, "sliding_attention")) return theta;
  const std::optional<Section> rope = config.object("rope_parameters");
  const std::optional<Section> sliding = rope ? rope->object("sliding_attention") : std::nullopt;
  return sliding ? sliding->number({"rope_theta"}) : std::nullopt;
}

/// Rotated elements of a head: stated, or a fraction of the head.
std::optional<std::int64_t> read_dim(const Section& config,
                                     const std::optional<std::int64_t>& head_dim) {
  if (const auto dim = config.integer({"qk_rope_head_dim", "rotary_dim"})) return dim;
  std::optional<double> part = config.number({"partial_rotary_factor", "rotary_pct"});
  if (!part) {
    const std::optional<Section> rope = config.object("rope_parameters");
    if (rope) part = rope->number({"partial_rotary_factor"});
  }
  if (!part || !head_dim || !(*part >= 0.0 && *part <= 1.0)) return std::nullopt;
  return static_cast<std::int64_t>(*part * static_cast<double>(*head_dim));
}

std::vector<std::int64_t> read_sections(const Section& config) {
  const std::optional<Section> rope = scaling_section(config);
  return rope ? rope->integers("mrope_section") : std::vector<std::int64_t>();
}

std::optional<RopeStyle> read_style(const Section& config, std::string_view model_type) {
  const auto known = find_hf_model_type(model_type);
  if (!known) return std::nullopt;
  switch (known->rope) {
    case RopeRule::interleaved_or_half:
      return config.boolean("rope_interleave").value_or(true) ? RopeStyle::interleaved
                                                              : RopeStyle::half;
    case RopeRule::half_or_none:
      return config.text({"position_embedding_type"}) == "nope" ? RopeStyle::none : RopeStyle::half;
    default:
      return fixed_style(known->rope);
  }
}

}  // namespace

void read_rope(const Section& section, ModelConfig& model) {
  model.rope_theta = read_theta(section).value_or(model.rope_theta);
  model.rope_theta_local = read_local_theta(section);
  model.rope_scaling = read_scaling(section);
  model.rope_sections = read_sections(section);
  model.rope_dim = read_dim(section, model.head_dim);
  model.rope_style = read_style(section, model.architecture.value_or(""));
}

}  // namespace safetensors::weights
