// Maps the tensor names of files to canonical names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace safetensors::weights {

/// Module and parameter of a name: "model.norm.weight" is {"model.norm", "weight"}. The parameter
/// is empty unless it is weight, bias, scales, biases or global_scale.
struct NameParts {
  std::string_view module;
  std::string_view param;
};
[[nodiscard]] NameParts split_param(std::string_view name) noexcept;

/// Returns a module's name without the prefix of the language model.
[[nodiscard]] std::string_view inner_name(std::string_view module) noexcept;

/// The result for one name of a file.
struct Mapped {
  enum class Kind : std::uint8_t { canonical, unmapped, ignored };
  Kind kind = Kind::unmapped;
  std::string name;  ///< of Kind::canonical
};

/// Maps the names of a Hugging Face or MLX checkpoint. Results are in the order of `names`.
[[nodiscard]] std::vector<Mapped> map_hf_names(std::span<const std::string_view> names);
/// Maps the names of a GGUF file. `architecture` is its general.architecture.
[[nodiscard]] std::vector<Mapped> map_gguf_names(std::span<const std::string_view> names,
                                                 std::string_view architecture);

/// Returns whether a canonical name is that of a tower of images or sound, or of a projector.
[[nodiscard]] bool is_of_tower(std::string_view canonical) noexcept;

/// Orders canonical names by bytes, and runs of digits by their value: layer 2 is before layer 10.
[[nodiscard]] bool name_less(std::string_view a, std::string_view b) noexcept;

/// Splits a canonical module: "layers.3.ffn.up" is {"ffn.up", "3"}. A module outside the layers
/// stays whole.
struct LayerModule {
  std::string_view module;
  std::string_view layer;  ///< digits; empty outside the layers
};
[[nodiscard]] LayerModule split_layer(std::string_view canonical_module) noexcept;

}  // namespace safetensors::weights
