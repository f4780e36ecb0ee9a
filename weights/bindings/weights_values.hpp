// Conversions between values of the weight layer and Python objects.
#pragma once

#include "python.hpp"
#include "safetensors/weights/weights.hpp"

namespace safetensors::python {

/// Returns the configuration as a dict of its fields. Fields that the model does not state are
/// None.
[[nodiscard]] py::dict to_dict(const weights::ModelConfig& config);
/// Returns (mode, bits, group_size), or None.
[[nodiscard]] py::object to_tuple(const std::optional<weights::QuantParams>& quant);
/// Returns a number, bool, str or list; bytes for a string that is not UTF-8.
[[nodiscard]] py::object to_object(const weights::MetaValue& value);
/// Returns what json.loads returns, except that integers beyond 64 bits are floats.
[[nodiscard]] py::object to_object(const weights::Json& value);
/// Converts None, or a tuple (mode, bits, group_size). Throws ValueError for an unknown mode.
[[nodiscard]] std::optional<weights::QuantParams> to_quant_params(py::handle object);

}  // namespace safetensors::python
