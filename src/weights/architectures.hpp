// Facts about architectures that no file of a model states.
#pragma once

#include <cstdint>
#include <string_view>

namespace safetensors::weights {

/// How the RopeStyle of a model follows from its architecture. The last five rules depend on the
/// model's configuration too.
enum class RopeRule : std::uint8_t {
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

/// How the conversion to GGUF changed the numbers of a checkpoint.
struct HfLayout {
  enum class Change : std::uint8_t {
    none,
    reordered_rows,  ///< rows of q and k alternate between the halves of a head (see RowOrder)
    raised_norms,    ///< norm weights are one higher
    other,           ///< something that is not undone
  };
  Change change;
  std::string_view reason;  ///< of Change::other, for the error message
};

/// An architecture of GGUF files: a value of general.architecture.
struct GgufArchitecture {
  std::string_view name;
  RopeRule rope;
  HfLayout layout;
};
/// Returns nullptr if the architecture is not known.
[[nodiscard]] const GgufArchitecture* find_gguf_architecture(std::string_view name) noexcept;

/// The number that a model adds to a stored norm weight before it multiplies by it.
enum class NormRule : std::uint8_t {
  zero,
  one,
  one_in_transformers,  ///< 1 as transformers stores them, 0 as mlx-lm does; 0 for linear_attn.norm
  one_in_step_names,    ///< 1 with the names of Step's checkpoints, 0 with those of mlx-lm
};

/// A model type of Hugging Face and MLX checkpoints: config.json's model_type.
struct HfModelType {
  std::string_view name;
  RopeRule rope;
  NormRule norm;
};
/// Returns nullptr if the model type is not known.
[[nodiscard]] const HfModelType* find_hf_model_type(std::string_view name) noexcept;

}  // namespace safetensors::weights
