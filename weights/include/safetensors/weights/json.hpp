// JSON values, for a model's config.json.
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
/// exponent is an integer if it fits in 64 bits.
///
/// Thread safety: several threads may read a value at once.
/// Lifetime: pointers that members return are valid until the value is changed or destroyed.
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
  /// Returns an integer that was written without fraction and exponent.
  [[nodiscard]] const std::int64_t* as_int64() const noexcept {
    return std::get_if<std::int64_t>(&value_);
  }
  /// Returns an integer, or a number whose fraction is 0: some writers write 1.0 for 1.
  [[nodiscard]] std::optional<std::int64_t> as_integer() const noexcept;
  /// Returns any number. {"__float__": "Infinity"} is also a number, as are "-Infinity" and "NaN"
  /// in its place: transformers writes values that JSON lacks in this form.
  [[nodiscard]] std::optional<double> as_number() const noexcept;
  /// Returns the member of that name, the last one if there are several, as Python does. Returns
  /// nullptr if this is not an object or has no such member.
  [[nodiscard]] const Json* find(std::string_view name) const noexcept;
  /// Returns the kind of the value for messages: "null", "a boolean", "an integer", "a string" ...
  [[nodiscard]] std::string_view kind() const noexcept;

  /// Returns whether two values are the same, with the members of objects in the same order.
  [[nodiscard]] friend bool operator==(const Json& a, const Json& b) {
    return a.value_ == b.value_;
  }

  Array& array() noexcept { return std::get<Array>(value_); }
  Object& object() noexcept { return std::get<Object>(value_); }

 private:
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace safetensors::weights
