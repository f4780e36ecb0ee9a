#include "weights_values.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safetensors/weights/config_fields.hpp"

namespace safetensors::python {
namespace {

using weights::LayerKind;
using weights::MetaValue;
using weights::ModelConfig;
using weights::RopeStyle;

/// Returns a value of the configuration: None for what the model does not state.
template <typename T>
py::object field_of(const T& value) {
  return py::cast(value);
}
py::object field_of(const std::string& text) { return to_str(text); }
py::object field_of(RopeStyle style) { return to_str(name(style)); }
py::object field_of(LayerKind kind) { return to_str(name(kind)); }
py::object field_of(const weights::QuantParams& quant) {
  return py::make_tuple(to_str(name(quant.mode)), quant.bits, quant.group_size);
}
py::object field_of(const weights::RopeScaling& scaling);
template <typename T>
py::object field_of(const std::vector<T>& values) {
  py::list list;
  for (const T& value : values) list.append(field_of(value));
  return list;
}
template <typename T>
py::object field_of(const std::optional<T>& value) {
  return value ? field_of(*value) : py::object(py::none());
}

template <typename Struct>
py::dict fields_of(const Struct& from) {
  py::dict dict;
  for_each_field(from,
                 [&](const char* field, const auto& value) { dict[field] = field_of(value); });
  return dict;
}
py::object field_of(const weights::RopeScaling& scaling) { return fields_of(scaling); }

}  // namespace

py::object to_tuple(const std::optional<weights::QuantParams>& quant) { return field_of(quant); }

py::dict to_dict(const ModelConfig& config) {
  py::dict dict = fields_of(config);
  dict["raw"] = config.raw == nullptr ? py::object(py::none()) : to_object(*config.raw);
  return dict;
}

py::object to_object(const weights::Json& value) {
  if (value.is_null()) return py::none();
  if (const bool* truth = value.as_bool()) return py::bool_(*truth);
  if (const std::string* text = value.as_string()) return to_unicode(*text);
  if (const auto* array = value.as_array()) {
    py::list list;
    for (const weights::Json& element : *array) list.append(to_object(element));
    return list;
  }
  if (const auto* object = value.as_object()) {
    py::dict dict;
    for (const auto& [key, member] : *object) dict[to_unicode(key)] = to_object(member);
    return dict;
  }
  if (const std::int64_t* whole = value.as_int64()) return py::int_(*whole);
  return py::float_(value.as_number().value_or(0.0));
}

py::object to_object(const MetaValue& value) {
  if (const auto truth = value.as_bool()) return py::bool_(*truth);
  if (const auto number = value.as_int64()) return py::int_(*number);
  if (const auto number = value.as_uint64()) return py::int_(*number);
  if (const auto number = value.as_float()) return py::float_(*number);
  if (const auto text = value.as_string()) {
    if (value.is_utf8()) return to_unicode(*text);
    return py::bytes(text->data(), text->size());
  }
  py::list list;
  if (const auto array = value.as_array()) {
    for (const MetaValue element : *array) list.append(to_object(element));
  }
  return list;
}

std::optional<weights::QuantParams> to_quant_params(py::handle object) {
  if (object.is_none()) return std::nullopt;
  const auto name = py::cast<std::string>(object[py::int_(0)]);
  const auto mode = weights::parse_quant_mode(name);
  if (!mode) throw py::value_error("there is no mode of quantisation '" + name + "'");
  return weights::QuantParams{*mode, py::cast<int>(object[py::int_(1)]),
                              py::cast<int>(object[py::int_(2)])};
}

}  // namespace safetensors::python
