// The names that files of a model have: NAME.safetensors, NAME-00001-of-00002.safetensors and so
// on.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace safetensors {

/// The longest number in a name, in digits: it fits in 32 bits.
inline constexpr std::size_t kMaxNumberDigits = 9;

/// A name that ends with "-NUMBER-of-TOTAL". The digits may be of any width, as "-1-of-000002".
struct NumberedName {
  std::string_view stem;
  std::size_t number;
  std::size_t total;
};

/// Takes such a name apart, which has no suffix. The stem is not empty.
[[nodiscard]] std::optional<NumberedName> parse_numbered(std::string_view name);

/// A name that may be one of a variant: "model.fp16" is variant "fp16" of "model".
struct DottedName {
  std::string_view name;
  std::string_view variant;
};

/// Parts a name at its last dot, if what follows has only letters, digits and "_".
[[nodiscard]] std::optional<DottedName> parse_dotted(std::string_view name);

/// Returns a number of at least five digits, with leading zeros.
[[nodiscard]] std::string five_digits(std::size_t number);

/// Returns what the name of a shard has after the model's name: -00001-of-00002.safetensors.
[[nodiscard]] std::string numbered_end(std::size_t number, std::size_t total);

}  // namespace safetensors
