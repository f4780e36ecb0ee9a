// `config_groups` of compressed-tensors and modelopt: which modules are quantised how.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.hpp"
#include "schemes/name_pattern.hpp"

namespace safetensors::weights {

/// How the weights of a group are quantised. Values that the file does not state are empty.
struct CtGroup {
  std::string format;  ///< the group's own, else empty
  std::optional<int> bits;
  std::optional<bool> is_float;
  std::optional<bool> symmetric;
  std::optional<std::int64_t> group_size;  ///< 1 or more; of the strategies with groups only
  std::optional<std::array<std::uint32_t, 2>> block_size;
  std::string strategy;
};

/// The groups of a model.
class CtGroups {
 public:
  CtGroups() = default;
  /// Reads `config_groups` of a quantization_config:
  ///
  ///     {"group_0": {"targets": ["Linear", "re:.*mlp.*", "lm_head"],
  ///                  "weights": {"num_bits": 4, "type": "int", "symmetric": true,
  ///                              "strategy": "group", "group_size": 128}}}
  ///
  /// Throws: config, with the key as subject, for values of the wrong type or outside their range;
  ///   limit for patterns of more than 16 KiB.
  CtGroups(const Json& config, const std::filesystem::path& path);

  /// Returns the group of a module: the only one; else by its name as a target, by the first of the
  /// sorted patterns that match, or by the target "Linear", which has all modules. Nothing if no
  /// group has the module.
  ///
  /// Throws: unsupported for a pattern that NamePattern does not accept, once a module needs it;
  ///   limit if patterns are to match a name of more than 1 KiB, or all names together take more
  ///   than 10^10 steps, some 3 seconds. A step is a byte of a pattern at a byte of a name.
  /// Thread safety: one thread at a time.
  [[nodiscard]] const CtGroup* find(std::string_view module) const;
  /// Returns the group if there is only one.
  [[nodiscard]] const CtGroup* only() const noexcept {
    return groups_.size() == 1 ? groups_.data() : nullptr;
  }

 private:
  struct Pattern {
    std::string text;
    std::optional<NamePattern> parsed;
    std::size_t group;
  };

  std::filesystem::path path_;
  std::vector<CtGroup> groups_;
  std::map<std::string, std::size_t, std::less<>> names_;  ///< groups by exact target
  std::vector<Pattern> patterns_;                          ///< sorted by their text
  mutable std::uint64_t steps_ = 0;                        ///< of matching, by all calls
};

}  // namespace safetensors::weights
