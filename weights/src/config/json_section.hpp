// Reads values of config.json and checks their types.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/fail.hpp"
#include "common/json.hpp"
#include "config/rules.hpp"

namespace safetensors::weights {

/// An object of config.json. Accessors return nothing, or an empty list, for keys that are absent
/// or null. They throw WeightsError config, with the key as subject, for values of the wrong type.
class Section {
 public:
  Section(const Json& json, const std::filesystem::path& path) : json_(&json), path_(&path) {}

  /// Returns the first of the keys that is present and not null.
  struct Found {
    const Json* value = nullptr;
    std::string_view key;
  };
  [[nodiscard]] Found find(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys) {
      const Json* value = json_->find(key);
      if (value != nullptr && !value->is_null()) return {value, key};
    }
    return {};
  }

  [[nodiscard]] std::optional<std::int64_t> integer(
      std::initializer_list<std::string_view> keys) const {
    const auto [value, key] = find(keys);
    if (value == nullptr) return std::nullopt;
    return integer_of(*value, key);
  }
  [[nodiscard]] std::int64_t integer_of(const Json& value, std::string_view key) const {
    const std::optional<std::int64_t> number = value.as_integer();
    if (!number) refuse(key, "an integer", value.kind());
    if (*number < 0 || *number >= kIntegerEnd) {
      fail(Errc::config, *path_, key, std::to_string(*number) + " is not within 0 and 2^31");
    }
    return *number;
  }
  [[nodiscard]] std::optional<double> number(std::initializer_list<std::string_view> keys) const {
    const auto [value, key] = find(keys);
    if (value == nullptr) return std::nullopt;
    const std::optional<double> number = value->as_number();
    if (!number) refuse(key, "a number", value->kind());
    return number;
  }
  [[nodiscard]] std::optional<std::string> text(
      std::initializer_list<std::string_view> keys) const {
    const auto [value, key] = find(keys);
    if (value == nullptr) return std::nullopt;
    if (value->as_string() == nullptr) refuse(key, "a string", value->kind());
    return *value->as_string();
  }
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const Json* value = find({key}).value;
    if (value == nullptr) return std::nullopt;
    if (value->as_bool() == nullptr) refuse(key, "a boolean", value->kind());
    return *value->as_bool();
  }
  /// Reads an integer, or a list with one for each layer.
  void per_layer(std::initializer_list<std::string_view> keys, std::optional<std::int64_t>& most,
                 std::vector<std::int64_t>& layers) const {
    const auto [value, key] = find(keys);
    if (value == nullptr) return;
    const Json::Array* array = value->as_array();
    if (array == nullptr) {
      most = integer_of(*value, key);
      return;
    }
    for (const Json& element : *array) layers.push_back(integer_of(element, key));
    if (!layers.empty()) most = *std::ranges::max_element(layers);
  }
  /// Returns an integer, or the maximum of a list.
  [[nodiscard]] std::optional<std::int64_t> most(
      std::initializer_list<std::string_view> keys) const {
    std::optional<std::int64_t> most;
    std::vector<std::int64_t> layers;
    per_layer(keys, most, layers);
    return most;
  }
  /// Returns a list of integers.
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key) const {
    std::vector<std::int64_t> values;
    for (const Json& element : array(key)) values.push_back(integer_of(element, key));
    return values;
  }
  /// Returns a list of numbers.
  [[nodiscard]] std::vector<double> numbers(std::string_view key) const {
    std::vector<double> values;
    for (const Json& element : array(key)) {
      const std::optional<double> number = element.as_number();
      if (!number) refuse(key, "a number", element.kind());
      values.push_back(*number);
    }
    return values;
  }
  /// Returns a list.
  [[nodiscard]] std::span<const Json> array(std::string_view key) const {
    const Json* value = find({key}).value;
    if (value == nullptr) return {};
    if (value->as_array() == nullptr) refuse(key, "an array", value->kind());
    return *value->as_array();
  }
  /// Returns the section of an object; nothing if the value is absent or no object.
  [[nodiscard]] std::optional<Section> object(std::string_view key) const {
    const Json* value = find({key}).value;
    if (value == nullptr || value->as_object() == nullptr) return std::nullopt;
    return Section(*value, *path_);
  }
  [[noreturn]] void refuse(std::string_view key, std::string_view wanted,
                           std::string_view found) const {
    fail(Errc::config, *path_, key,
         std::string(wanted) + " was expected, not " + std::string(found));
  }

 private:
  const Json* json_;
  const std::filesystem::path* path_;
};

}  // namespace safetensors::weights
