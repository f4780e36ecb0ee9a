// Making PySafeSlice objects.
#pragma once

#include <memory>
#include <string_view>

#include "open_file.hpp"
#include "python.hpp"

namespace safetensors::python {

/// Returns a new PySafeSlice, which keeps the file open. Raises SafetensorError if the file has no
/// tensor of this name.
[[nodiscard]] py::object new_slice(std::shared_ptr<const OpenFile> file, std::string_view name);

}  // namespace safetensors::python
