// Facts about names and architectures that no file of a model states.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace safetensors::weights {

/// Returns the canonical name of a module of a GGUF file, or of a Hugging Face or MLX checkpoint.
///
/// In both names, `#` stands for a number: "blk.#.attn_q" is "layers.#.attention.q". Names of
/// checkpoints begin after the prefix of the language model, such as "model.". The result is
/// nothing if the module is not known, and empty if it is left out.
[[nodiscard]] std::optional<std::string_view> find_gguf_name(std::string_view module) noexcept;
[[nodiscard]] std::optional<std::string_view> find_hf_name(std::string_view module) noexcept;

/// How the RopeStyle of a model follows from its architecture. The last five rules depend on the
/// model's configuration too.
enum class RopeRule : std::uint8_t {
  unknown,
  none,
  half,
  interleaved,
  mrope,
  imrope,
  half_or_mrope,         ///< GGUF: mrope if rope.dimension_sections has two sections or more
  interleaved_or_mrope,  ///< likewise
  interleaved_or_none,   ///< GGUF: none if rope.scaling.finetuned is false
  interleaved_or_half,   ///< config.json: half if rope_interleave is false
  half_or_none,          ///< config.json: none if position_embedding_type is "nope"
};

/// How the conversion to GGUF changes the numbers of a checkpoint. The changes of all architectures
/// but those of the first three rows are not undone: see reason_of().
enum class Conversion : std::uint8_t {
  same,
  reordered_rows,  ///< rows of q and k alternate between the halves of a head (see RowOrder)
  raised_norms,    ///< norm weights are one higher
  latent,          ///< DeepSeek's latent attention (MLA)
  delta_net,       ///< Qwen's gated delta networks
  state_space,     ///< Mamba and its relatives
  fused_qkv,
  grouped_rows,
  gpt_oss,
  transposed,
  multiplied,
  unrecorded,
};
/// Returns what a conversion changes, for the message that it is not undone; empty for the first
/// three.
[[nodiscard]] std::string_view reason_of(Conversion conversion) noexcept;

/// An architecture of GGUF files: a value of general.architecture.
struct GgufArchitecture {
  RopeRule rope;
  Conversion conversion;
  bool fuses_gate_and_up;  ///< layers without ffn_gate have gate and up in one matrix, ffn_up
};
/// Returns nothing if the architecture is not known.
[[nodiscard]] std::optional<GgufArchitecture> find_gguf_architecture(
    std::string_view name) noexcept;

/// The number that a model adds to a stored norm weight before it multiplies by it.
enum class NormRule : std::uint8_t {
  unknown,
  zero,
  one,
  one_in_transformers,  ///< 1 as transformers stores them, 0 as mlx-lm does; 0 for linear_attn.norm
  one_in_step_names,    ///< 1 with the names of Step's checkpoints, 0 with those of mlx-lm
};

/// A model type of Hugging Face and MLX checkpoints: config.json's model_type.
struct HfModelType {
  RopeRule rope;
  NormRule norm;
  bool norms_tell;  ///< the length of a layer's norm is the row length of what reads its output
};
/// Returns nothing if the model type is not known.
[[nodiscard]] std::optional<HfModelType> find_hf_model_type(std::string_view name) noexcept;

}  // namespace safetensors::weights
