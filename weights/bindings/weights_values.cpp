#include "weights_values.hpp"

#include <cstdint>

namespace safetensors::python {
namespace {

using weights::LayerKind;
using weights::MetaValue;
using weights::ModelConfig;
using weights::QuantMode;
using weights::RopeStyle;

std::string_view text_of(QuantMode mode) noexcept {
  switch (mode) {
    case QuantMode::affine:
      return "affine";
    case QuantMode::mxfp4:
      return "mxfp4";
    case QuantMode::mxfp8:
      return "mxfp8";
    case QuantMode::nvfp4:
      return "nvfp4";
  }
  return {};
}

std::string_view text_of(LayerKind kind) noexcept {
  switch (kind) {
    case LayerKind::full:
      return "full";
    case LayerKind::sliding:
      return "sliding";
    case LayerKind::linear:
      return "linear";
    case LayerKind::conv:
      return "conv";
    case LayerKind::recurrent:
      return "recurrent";
    case LayerKind::other:
      return "other";
  }
  return {};
}

std::string_view text_of(RopeStyle style) noexcept {
  switch (style) {
    case RopeStyle::half:
      return "half";
    case RopeStyle::interleaved:
      return "interleaved";
    case RopeStyle::mrope:
      return "mrope";
    case RopeStyle::imrope:
      return "imrope";
    case RopeStyle::none:
      return "none";
  }
  return {};
}

template <typename T>
py::object or_none(const std::optional<T>& value) {
  if (!value) return py::none();
  return py::cast(*value);
}

template <typename T>
py::list list_of(const std::vector<T>& values) {
  py::list list;
  for (const T& value : values) list.append(value);
  return list;
}

py::list kinds_of(const std::vector<LayerKind>& kinds) {
  py::list list;
  for (const LayerKind kind : kinds) list.append(to_str(text_of(kind)));
  return list;
}

py::object scaling_of(const std::optional<weights::RopeScaling>& scaling) {
  if (!scaling) return py::none();
  py::dict dict;
  dict["type"] = to_str(scaling->type);
  dict["factor"] = or_none(scaling->factor);
  dict["original_max_position_embeddings"] = or_none(scaling->original_max_position_embeddings);
  dict["low_freq_factor"] = or_none(scaling->low_freq_factor);
  dict["high_freq_factor"] = or_none(scaling->high_freq_factor);
  dict["attention_factor"] = or_none(scaling->attention_factor);
  dict["beta_fast"] = or_none(scaling->beta_fast);
  dict["beta_slow"] = or_none(scaling->beta_slow);
  dict["ext_factor"] = or_none(scaling->ext_factor);
  dict["mscale"] = or_none(scaling->mscale);
  dict["mscale_all_dim"] = or_none(scaling->mscale_all_dim);
  dict["long_factor"] = list_of(scaling->long_factor);
  dict["short_factor"] = list_of(scaling->short_factor);
  return dict;
}

py::object text_or_none(const std::optional<std::string>& text) {
  return text ? py::object(to_str(*text)) : py::object(py::none());
}

}  // namespace

py::object to_tuple(const std::optional<weights::QuantParams>& quant) {
  if (!quant) return py::none();
  return py::make_tuple(to_str(text_of(quant->mode)), quant->bits, quant->group_size);
}

py::dict to_dict(const ModelConfig& config) {
  py::dict dict;
  dict["architecture"] = text_or_none(config.architecture);
  dict["dim"] = or_none(config.dim);
  dict["n_layers"] = or_none(config.n_layers);
  dict["n_heads"] = or_none(config.n_heads);
  dict["n_kv_heads"] = or_none(config.n_kv_heads);
  dict["head_dim"] = or_none(config.head_dim);
  dict["ffn_dim"] = or_none(config.ffn_dim);
  dict["n_heads_of_layers"] = list_of(config.n_heads_of_layers);
  dict["n_kv_heads_of_layers"] = list_of(config.n_kv_heads_of_layers);
  dict["ffn_dim_of_layers"] = list_of(config.ffn_dim_of_layers);
  dict["vocab_size"] = or_none(config.vocab_size);
  dict["max_seq_len"] = or_none(config.max_seq_len);
  dict["norm_eps"] = or_none(config.norm_eps);
  dict["rope_theta"] = config.rope_theta;
  dict["rope_scaling"] = scaling_of(config.rope_scaling);
  dict["rope_style"] =
      config.rope_style ? py::object(to_str(text_of(*config.rope_style))) : py::object(py::none());
  dict["norm_weight_offset"] = or_none(config.norm_weight_offset);
  dict["sliding_window"] = config.sliding_window;
  dict["n_experts"] = config.n_experts;
  dict["n_experts_used"] = config.n_experts_used;
  dict["moe_ffn_dim"] = config.moe_ffn_dim;
  dict["attn_logit_softcap"] = or_none(config.attn_logit_softcap);
  dict["final_logit_softcap"] = or_none(config.final_logit_softcap);
  dict["tie_word_embeddings"] = config.tie_word_embeddings;
  dict["quantization"] = to_tuple(config.quantization);
  dict["quantization_method"] = text_or_none(config.quantization_method);
  dict["bos_token_id"] = or_none(config.bos_token_id);
  dict["eos_token_ids"] = list_of(config.eos_token_ids);
  dict["rope_dim"] = or_none(config.rope_dim);
  dict["rope_theta_local"] = or_none(config.rope_theta_local);
  dict["rope_sections"] = list_of(config.rope_sections);
  dict["v_head_dim"] = or_none(config.v_head_dim);
  dict["q_lora_rank"] = or_none(config.q_lora_rank);
  dict["kv_lora_rank"] = or_none(config.kv_lora_rank);
  dict["qk_nope_head_dim"] = or_none(config.qk_nope_head_dim);
  dict["qk_rope_head_dim"] = or_none(config.qk_rope_head_dim);
  dict["shared_ffn_dim"] = or_none(config.shared_ffn_dim);
  dict["n_shared_experts"] = or_none(config.n_shared_experts);
  dict["first_dense_layers"] = or_none(config.first_dense_layers);
  dict["expert_weights_scale"] = or_none(config.expert_weights_scale);
  dict["expert_gating"] = text_or_none(config.expert_gating);
  dict["activation"] = text_or_none(config.activation);
  dict["query_scale"] = or_none(config.query_scale);
  dict["embedding_scale"] = or_none(config.embedding_scale);
  dict["residual_scale"] = or_none(config.residual_scale);
  dict["logit_scale"] = or_none(config.logit_scale);
  dict["layer_kinds"] = kinds_of(config.layer_kinds);
  dict["sliding_window_pattern"] = or_none(config.sliding_window_pattern);
  dict["raw"] = config.raw == nullptr ? py::object(py::none()) : to_object(*config.raw);
  return dict;
}

py::object to_object(const weights::Json& value) {
  if (value.is_null()) return py::none();
  if (const bool* truth = value.as_bool()) return py::bool_(*truth);
  if (const std::string* text = value.as_string()) return to_unicode(*text);
  if (const auto* array = value.as_array()) {
    py::list list;
    for (const weights::Json& element : *array) list.append(to_object(element));
    return list;
  }
  if (const auto* object = value.as_object()) {
    py::dict dict;
    for (const auto& [key, member] : *object) dict[to_unicode(key)] = to_object(member);
    return dict;
  }
  if (const std::int64_t* whole = value.as_int64()) return py::int_(*whole);
  return py::float_(value.as_number().value_or(0.0));
}

py::object to_object(const MetaValue& value) {
  if (const auto truth = value.as_bool()) return py::bool_(*truth);
  if (const auto number = value.as_int64()) return py::int_(*number);
  if (const auto number = value.as_uint64()) return py::int_(*number);
  if (const auto number = value.as_float()) return py::float_(*number);
  if (const auto text = value.as_string()) {
    if (value.is_utf8()) return to_unicode(*text);
    return py::bytes(text->data(), text->size());
  }
  py::list list;
  if (const auto array = value.as_array()) {
    for (const MetaValue element : *array) list.append(to_object(element));
  }
  return list;
}

std::optional<weights::QuantParams> to_quant_params(py::handle object) {
  if (object.is_none()) return std::nullopt;
  const auto mode_text = py::cast<std::string>(object[py::int_(0)]);
  // The first value without a text follows the last mode.
  for (std::uint8_t i = 0; !text_of(QuantMode{i}).empty(); ++i) {
    if (mode_text == text_of(QuantMode{i})) {
      return weights::QuantParams{QuantMode{i}, py::cast<int>(object[py::int_(1)]),
                                  py::cast<int>(object[py::int_(2)])};
    }
  }
  throw py::value_error("there is no mode of quantisation '" + mode_text + "'");
}

std::string_view text_of(weights::Format format) noexcept {
  switch (format) {
    case weights::Format::hf_safetensors:
      return "hf_safetensors";
    case weights::Format::mlx_safetensors:
      return "mlx_safetensors";
    case weights::Format::gguf:
      return "gguf";
  }
  return {};
}

std::string_view text_of(weights::Storage storage) noexcept {
  switch (storage) {
    case weights::Storage::raw:
      return "raw";
    case weights::Storage::mlx_pack:
      return "mlx_pack";
    case weights::Storage::ggml_block:
      return "ggml_block";
    case weights::Storage::scheme:
      return "scheme";
  }
  return {};
}

}  // namespace safetensors::python
