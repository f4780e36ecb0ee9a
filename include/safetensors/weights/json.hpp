// JSON values: a model's config.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "safetensors/export.hpp"

namespace safetensors::weights {

/// A JSON value: null, boolean, number, string, array or object. A number without fraction or
/// exponent is an integer where 64 bits hold it. Safe to read from many threads.
class SAFETENSORS_API Json {
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
  /// An integer that was written as one.
  [[nodiscard]] const std::int64_t* as_int64() const noexcept {
    return std::get_if<std::int64_t>(&value_);
  }
  /// An integer, or a number without a fraction, as writers in other languages have it.
  [[nodiscard]] std::optional<std::int64_t> as_integer() const noexcept;
  /// Any number, or {"__float__": "Infinity"} (also "-Infinity", "NaN"), as transformers writes
  /// what JSON lacks.
  [[nodiscard]] std::optional<double> as_number() const noexcept;
  /// The member of that name; nullptr when this is no object or has none. The last of several
  /// counts, as in Python.
  [[nodiscard]] const Json* find(std::string_view name) const noexcept;
  /// What kind of value it is, as "null", "a boolean", "an integer", "a string", "an array".
  [[nodiscard]] std::string_view kind() const noexcept;

  Array& array() noexcept { return std::get<Array>(value_); }
  Object& object() noexcept { return std::get<Object>(value_); }

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace safetensors::weights
