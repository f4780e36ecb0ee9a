// Patterns for names of modules, as configurations of compressed-tensors state them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace safetensors::weights {

/// A pattern of these constructs, which are those of Python's regular expressions:
///
///     a character   .   \d   [0-9]   \ before punctuation   * and + after one of these
///     (a|b)   ^   $
///
/// Safe for untrusted input.
class NamePattern {
 public:
  /// Returns nothing for a text with other constructs, or groups nested more than 8 deep.
  [[nodiscard]] static std::optional<NamePattern> parse(std::string_view text);

  /// Returns whether the name begins with a match, as re.match() does. Takes time in proportion to
  /// the length of the pattern times that of the name.
  [[nodiscard]] bool matches(std::string_view name) const;

 private:
  enum class Kind : std::uint8_t { character, any, digit, begin, end, group };
  struct Item;
  using Sequence = std::vector<Item>;
  struct Item {
    Kind kind = Kind::character;
    char character = 0;
    bool is_optional = false;       ///< after *
    bool is_repeated = false;       ///< after * and +
    std::vector<Sequence> choices;  ///< of a group
  };
  /// Which places of a name a match can have reached: [i] is before character i.
  using Places = std::vector<std::uint8_t>;
  class Parser;

  [[nodiscard]] static bool accepts(const Item& item, char c) noexcept;
  static void follow(const Item& item, std::string_view name, Places& places);
  static void follow(const std::vector<Sequence>& choices, std::string_view name, Places& places);

  std::vector<Sequence> choices_;
};

}  // namespace safetensors::weights
