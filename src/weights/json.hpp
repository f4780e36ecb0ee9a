// Small JSON documents: configurations and shard indexes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "safetensors/weights/limits.hpp"

namespace safetensors::weights {

/// A JSON value. A number without fraction or exponent is an integer where 64 bits hold it.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;
  template <typename T>
  explicit Json(T value) : value_(std::move(value)) {}

  [[nodiscard]] bool is_null() const noexcept {
    return std::holds_alternative<std::nullptr_t>(value_);
  }
  [[nodiscard]] const bool* as_bool() const noexcept { return std::get_if<bool>(&value_); }
  [[nodiscard]] const std::string* as_string() const noexcept {
    return std::get_if<std::string>(&value_);
  }
  [[nodiscard]] const Array* as_array() const noexcept { return std::get_if<Array>(&value_); }
  [[nodiscard]] const Object* as_object() const noexcept { return std::get_if<Object>(&value_); }
  /// An integer, or a number without a fraction, as writers in other languages have it.
  [[nodiscard]] std::optional<std::int64_t> as_integer() const noexcept;
  /// Any number, or {"__float__": "Infinity"} (also "-Infinity", "NaN"), as transformers writes
  /// what JSON lacks.
  [[nodiscard]] std::optional<double> as_number() const noexcept;
  /// The member of that name; null when this is no object or has none. The last of several counts,
  /// as Python has it.
  [[nodiscard]] const Json* find(std::string_view name) const noexcept;
  /// What kind of value it is, for error texts: "a string".
  [[nodiscard]] std::string_view kind() const noexcept;

  Array& array() noexcept { return std::get<Array>(value_); }
  Object& object() noexcept { return std::get<Object>(value_); }

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

/// Whether a name may stand twice in one object.
enum class Duplicates : std::uint8_t { last_counts, refused };

/// Parses a document. `path` names it in errors.
/// Throws Error: json (not JSON, not UTF-8), limit (too deep, too many values), duplicate.
[[nodiscard]] Json parse_json(std::string_view text, const std::filesystem::path& path,
                              Duplicates duplicates, const Limits& limits);

/// Reads and parses a file. Throws also Error io and limit (size).
[[nodiscard]] Json read_json(const std::filesystem::path& path, Duplicates duplicates,
                             const Limits& limits);

}  // namespace safetensors::weights
