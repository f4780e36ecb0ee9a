// Values of the configuration and of the metadata.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/per_process.hpp"
#include "base/text.hpp"
#include "c/weights.hpp"
#include "safetensors/weights/config_fields.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::c::check_index;
using safetensors::c::check_pointer;
using safetensors::c::text_of;
using safetensors::weights::for_each_field;
using safetensors::weights::guarded;
using safetensors::weights::LayerKind;
using safetensors::weights::MetaArray;
using safetensors::weights::MetaType;
using safetensors::weights::MetaValue;
using safetensors::weights::ModelConfig;
using safetensors::weights::ModelMetadata;
using safetensors::weights::QuantMode;
using safetensors::weights::QuantParams;
using safetensors::weights::RopeScaling;
using safetensors::weights::RopeStyle;
using safetensors::weights::TextTable;

namespace {

/// Calls `visit(name, value)` for each field of the configuration, also for those within structs,
/// whose names have a dot. Of a struct that the model does not state, the values are not meant.
template <typename Visit>
void visit_fields(const ModelConfig& config, const Visit& visit) {
  for_each_field(config, [&](const std::string& name, const auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::optional<RopeScaling>> ||
                  std::is_same_v<Value, std::optional<QuantParams>>) {
      const typename Value::value_type none{};  // has the names of the members
      for_each_field(value ? *value : none, [&](const char* inner, const auto& member) {
        visit(name + "." + inner, value ? &member : nullptr);
      });
    } else {
      visit(name, &value);
    }
  });
}

/// Sets a value of C, all of which is 0 before.
class Setter {
 public:
  Setter(const safetensors_weights& weights, std::string key, safetensors_value& to)
      : weights_(weights), key_(std::move(key)), to_(to) {}

  void set(bool truth) {
    to_.kind = SAFETENSORS_VALUE_BOOLEAN;
    to_.integer = truth ? 1 : 0;
    to_.number = truth ? 1 : 0;
  }
  void set(std::int64_t integer) {
    to_.kind = SAFETENSORS_VALUE_INTEGER;
    to_.integer = integer;
    to_.number = static_cast<double>(integer);
  }
  void set(int integer) { set(std::int64_t{integer}); }
  void set(double number) {
    to_.kind = SAFETENSORS_VALUE_NUMBER;
    to_.number = number;
  }
  void set(std::string_view text) {
    to_.kind = SAFETENSORS_VALUE_STRING;
    to_.string = weights_.kept.text(text);
    to_.string_size = text.size();
  }
  void set(const std::string& text) { set(std::string_view(text)); }
  void set(RopeStyle style) { set(name(style)); }
  void set(QuantMode mode) { set(name(mode)); }
  void set(const std::vector<std::int64_t>& integers) {
    if (!integers.empty()) items(SAFETENSORS_VALUE_INTEGERS, integers.data(), integers.size());
  }
  void set(const std::vector<double>& numbers) {
    if (!numbers.empty()) items(SAFETENSORS_VALUE_NUMBERS, numbers.data(), numbers.size());
  }
  void set(const std::vector<LayerKind>& kinds) {
    if (kinds.empty()) return;
    strings([&] {
      std::vector<std::string_view> texts;
      texts.reserve(kinds.size());
      for (const LayerKind kind : kinds) texts.push_back(name(kind));
      return texts;
    });
  }
  template <typename T>
  void set(const std::optional<T>& value) {
    if (value) set(*value);
  }

  void set(const MetaValue& value) {
    to_.stored_type = static_cast<std::int32_t>(value.type());
    if (const auto truth = value.as_bool()) return set(*truth);
    if (const auto integer = value.as_int64()) return set(*integer);
    if (const auto integer = value.as_uint64()) return set_unsigned(*integer);
    if (const auto number = value.as_float()) return set(*number);
    if (const auto text = value.as_string()) return set(*text);
    if (const auto array = value.as_array()) set(*array);
  }

 private:
  void set_unsigned(std::uint64_t integer) {
    to_.kind = SAFETENSORS_VALUE_UNSIGNED;
    to_.integer = static_cast<std::int64_t>(integer);
    to_.number = static_cast<double>(integer);
  }
  void set(const MetaArray& array) {
    to_.stored_type = static_cast<std::int32_t>(array.element_type());
    const auto count = static_cast<std::size_t>(array.size());
    if (const auto raw = array.raw()) return items(SAFETENSORS_VALUE_ARRAY, raw->data(), count);
    if (array.element_type() != MetaType::string)
      return items(SAFETENSORS_VALUE_NESTED, nullptr, count);
    strings([&] {
      std::vector<std::string_view> texts;
      texts.reserve(count);
      for (const MetaValue each : array) texts.push_back(each.as_string().value_or(""));
      return texts;
    });
  }
  template <typename Make>
  void strings(const Make& make) {
    const TextTable& table = weights_.kept.table(key_, make);
    items(SAFETENSORS_VALUE_STRINGS, table.data(), table.size());
  }
  void items(std::int32_t kind, const void* first, std::size_t count) {
    to_.kind = kind;
    to_.items = first;
    to_.count = count;
  }

  const safetensors_weights& weights_;
  std::string key_;  // of a table
  safetensors_value& to_;
};

/// The names of all fields.
struct FieldNames {
  FieldNames() {
    std::vector<std::string> names;
    visit_fields({}, [&](const std::string& name, const auto*) { names.push_back(name); });
    table.emplace(std::vector<std::string_view>(names.begin(), names.end()));
  }
  std::optional<TextTable> table;
};
constinit safetensors::PerProcess<FieldNames> field_names;

safetensors_value value_of(const safetensors_weights& weights, const ModelMetadata::Item& item) {
  safetensors_value value{};
  Setter(weights, "metadata " + std::string(item.key), value).set(item.value);
  return value;
}

}  // namespace

std::int32_t safetensors_weights_config(const safetensors_weights* weights, const char* field,
                                        std::size_t field_size, safetensors_value* value,
                                        safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(value, 1, "value");
    const std::string_view wanted = text_of(field, field_size, "field");
    safetensors_value result{};
    result.stored_type = -1;
    bool is_found = false;
    visit_fields(weights->model.config(), [&](const std::string& each, const auto* from) {
      if (each != wanted) return;
      is_found = true;
      if (from != nullptr) Setter(*weights, "configuration " + each, result).set(*from);
    });
    if (!is_found) {
      fail(ErrorCode::kInvalidArgument,
           "the configuration has no field `" + safetensors::clipped(wanted) + "`",
           {.subject = std::string(wanted)});
    }
    *value = result;
  });
}

const safetensors_text* safetensors_weights_config_fields(std::size_t* count) {
  const TextTable* table = nullptr;
  (void)guarded(nullptr, [&] { table = &*field_names.get().table; });
  if (count != nullptr) *count = table == nullptr ? 0 : table->size();
  return table == nullptr ? nullptr : table->data();
}

std::int32_t safetensors_weights_metadata_at(const safetensors_weights* weights, std::size_t index,
                                             safetensors_text* key, safetensors_value* value,
                                             safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    const auto items = weights->model.metadata().items();
    check_index(index, items.size());
    const ModelMetadata::Item& item = items[index];
    safetensors_value result{};
    if (value != nullptr) result = value_of(*weights, item);
    if (key != nullptr) *key = {weights->kept.text(item.key), item.key.size()};
    if (value != nullptr) *value = result;
  });
}

std::int32_t safetensors_weights_metadata(const safetensors_weights* weights, const char* key,
                                          std::size_t key_size, safetensors_value* value,
                                          safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(value, 1, "value");
    const std::string_view wanted = text_of(key, key_size, "key");
    const MetaValue* const found = weights->model.metadata(wanted);
    if (found != nullptr) {
      *value = value_of(*weights, {wanted, *found});
      return;
    }
    safetensors_value none{};
    none.stored_type = -1;
    *value = none;
  });
}
