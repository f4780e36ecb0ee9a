#include "weights_values.hpp"

#include <array>

namespace safetensors::python {
namespace {

using weights::MetaType;
using weights::MetaValue;
using weights::ModelConfig;
using weights::QuantMode;

constexpr std::array<std::string_view, 4> kModes = {"affine", "mxfp4", "mxfp8", "nvfp4"};

template <typename T>
py::object or_none(const std::optional<T>& value) {
  if (!value) return py::none();
  return py::cast(*value);
}

py::list list_of(const std::vector<std::int64_t>& values) {
  py::list list;
  for (const std::int64_t value : values) list.append(value);
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
  return dict;
}

py::object text_or_none(const std::optional<std::string>& text) {
  return text ? py::object(to_str(*text)) : py::object(py::none());
}

}  // namespace

py::object to_tuple(const std::optional<weights::QuantParams>& quant) {
  if (!quant) return py::none();
  return py::make_tuple(to_str(kModes[static_cast<std::size_t>(quant->mode)]), quant->bits,
                        quant->group_size);
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
      config.rope_style == weights::RopeStyle::interleaved ? "interleaved" : "half";
  dict["norm_weight_offset"] = config.norm_weight_offset;
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
  return dict;
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
  for (std::size_t i = 0; i < kModes.size(); ++i) {
    if (mode_text == kModes[i]) {
      return weights::QuantParams{static_cast<QuantMode>(i), py::cast<int>(object[py::int_(1)]),
                                  py::cast<int>(object[py::int_(2)])};
    }
  }
  throw py::value_error("there is no mode of quantisation '" + mode_text + "'");
}

std::string_view text_of(weights::Format format) noexcept {
  constexpr std::array<std::string_view, 3> kNames = {"hf_safetensors", "mlx_safetensors", "gguf"};
  return kNames[static_cast<std::size_t>(format)];
}

std::string_view text_of(weights::Storage storage) noexcept {
  constexpr std::array<std::string_view, 3> kNames = {"raw", "mlx_pack", "ggml_block"};
  return kNames[static_cast<std::size_t>(storage)];
}

}  // namespace safetensors::python
