// What is known of a model's architecture, beyond what its files say.
#pragma once

#include <cstdint>
#include <string_view>

namespace safetensors::weights {

/// Which RopeStyle an architecture has. The last five depend on the model's configuration.
enum class RopeRule : std::uint8_t {
  none,
  half,
  interleaved,
  mrope,
  imrope,
  half_or_mrope,         ///< GGUF: mrope if rope.dimension_sections splits the angles
  interleaved_or_mrope,  ///< the same
  interleaved_or_none,   ///< GGUF: none if rope.scaling.finetuned is false
  interleaved_or_half,   ///< config.json: half if rope_interleave is false
  half_or_none,          ///< config.json: none if position_embedding_type is "nope"
};

/// What the conversion to GGUF did to the numbers of a checkpoint.
struct HfLayout {
  enum class Change : std::uint8_t {
    none,
    reordered_rows,  ///< rows of q and k alternate between the halves of a head
    raised_norms,    ///< norm weights are one higher
    other,           ///< something that cannot be undone
  };
  Change change;
  std::string_view reason;  ///< why it cannot be undone
};

/// An architecture of GGUF files, by general.architecture.
struct GgufArchitecture {
  std::string_view name;
  RopeRule rope;
  HfLayout layout;
};
/// Null when the architecture is not known.
[[nodiscard]] const GgufArchitecture* find_gguf_architecture(std::string_view name) noexcept;

/// What a model adds to a stored norm weight before it multiplies by it.
enum class NormRule : std::uint8_t {
  zero,
  one,
  one_in_transformers,  ///< 1 as transformers stores it, 0 as mlx-lm does; 0 for linear_attn.norm
  one_in_step_names,    ///< 1 under the names of the Step checkpoints, 0 under those of mlx-lm
};

/// A model type of Hugging Face and MLX checkpoints, by config.json's model_type.
struct HfModelType {
  std::string_view name;
  RopeRule rope;
  NormRule norm;
};
/// Null when the model type is not known.
[[nodiscard]] const HfModelType* find_hf_model_type(std::string_view name) noexcept;

}  // namespace safetensors::weights
