// Canonical names: which tensor of a model a source's name stands for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safetensors::weights {

/// A name taken apart: "model.norm.weight" is {"model.norm", "weight"}. The parameter is empty
/// unless it is one of weight, bias, scales, biases, global_scale.
struct NameParts {
  std::string_view module;
  std::string_view param;
};
[[nodiscard]] NameParts split_param(std::string_view name) noexcept;

/// What becomes of a source's name.
struct Mapped {
  enum class Kind : std::uint8_t { canonical, unmapped, ignored };
  Kind kind = Kind::unmapped;
  std::string name;  ///< when canonical
};

/// The names of a Hugging Face or MLX checkpoint, in the order given.
[[nodiscard]] std::vector<Mapped> map_hf_names(std::span<const std::string_view> names);
/// The names of a GGUF file; `architecture` is its general.architecture.
[[nodiscard]] std::vector<Mapped> map_gguf_names(std::span<const std::string_view> names,
                                                 std::string_view architecture);

/// The order of canonical names: by bytes, but runs of digits by their value.
[[nodiscard]] bool name_less(std::string_view a, std::string_view b) noexcept;

/// "layers.3.ffn.up" is {"ffn.up", true}; a name outside the layers is itself.
struct LayerModule {
  std::string_view module;
  std::string_view layer;  ///< digits; empty outside the layers
};
[[nodiscard]] LayerModule split_layer(std::string_view canonical_module) noexcept;

}  // namespace safetensors::weights
