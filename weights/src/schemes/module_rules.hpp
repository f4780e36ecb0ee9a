// Entries of a quantisation's configuration about single modules, and which of them match none.
//
// What is decoded does not depend on them: the tensors of a module show whether it is quantised.
// An entry that matches no module means that the configuration may be another model's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.hpp"

namespace safetensors::weights {

/// An entry that names modules of this model, and no others.
struct ModuleRule {
  enum class Form : std::uint8_t {
    name,       ///< a module, or what contains it
    beginning,  ///< the beginning of names
    pattern,    ///< as for NamePattern
  };
  std::string_view list;  ///< the key of its list: "ignore"
  std::string entry;      ///< as the list has it
  std::string text;       ///< without marks such as "re:"
  Form form = Form::name;
  std::size_t group = 0;  ///< patterns of a group are alternatives: one must match
};

/// Returns the entries that must match a module: of those that quantise modules, names and
/// patterns; of those that keep modules as they are, names with the number of a layer. Recipes for
/// many models have the others, such as `lm_head`, patterns for parts that a model may lack, and
/// names of classes. So are entries that are not understood.
///
///     keep        ignore, modules_to_not_convert, exclude_modules, ignored_layers,
///                 llm_int8_skip_modules; "-:" in dynamic, 16 bits in extra_config
///     quantise    config_groups.*.targets, quantized_layers, dynamic, extra_config
[[nodiscard]] std::vector<ModuleRule> read_module_rules(const Json& quantisation);

/// Warns of entries that match none of the tensors, with a line for each list.
///
/// Names match with any prefix before their part "layers.0". Experts match if there are experts:
/// a checkpoint may have them in one tensor. `absent_from` is the number of the first layer that
/// checkpoints may lack, as they do layers that predict further tokens.
///
/// Safe for untrusted input: patterns that would take more than a tenth of a second match.
void say_unmatched(std::span<const ModuleRule> rules, std::span<const std::string_view> tensors,
                   std::optional<std::int64_t> absent_from, std::vector<std::string>& warnings);

/// Warns of entries of a list.
void say_unmatched(std::string_view list, std::span<const std::string_view> entries,
                   std::vector<std::string>& warnings);

}  // namespace safetensors::weights
