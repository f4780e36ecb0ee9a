// A model's tables as Python values.
#pragma once

#include "python.hpp"
#include "safetensors/weights/weights.hpp"

namespace safetensors::python {

/// The configuration, by the names of its fields. What the model does not say is None.
[[nodiscard]] py::dict to_dict(const weights::ModelConfig& config);
/// None, or (mode, bits, group_size).
[[nodiscard]] py::object to_tuple(const std::optional<weights::QuantParams>& quant);
/// A number, bool, str, list, or bytes for a string that is not UTF-8.
[[nodiscard]] py::object to_object(const weights::MetaValue& value);
/// The value as json.loads would give it, but that integers beyond 64 bits are floats.
[[nodiscard]] py::object to_object(const weights::Json& value);
/// None, or params of a tuple or dict of mode, bits and group_size.
[[nodiscard]] std::optional<weights::QuantParams> to_quant_params(py::handle object);
[[nodiscard]] std::string_view text_of(weights::Format format) noexcept;
[[nodiscard]] std::string_view text_of(weights::Storage storage) noexcept;

}  // namespace safetensors::python
