// Reads parts of weights of compressed-tensors and modelopt.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weights/dequant/dequant.hpp"
#include "weights/dequant/part_bytes.hpp"
#include "weights/stored_weight.hpp"

namespace safetensors::weights {

/// Returns the name without its last component.
[[nodiscard]] inline std::string_view module_of(const SourceTensor& tensor) noexcept {
  const std::string_view name = tensor.info->name;
  const std::size_t end = name.rfind('.');
  return name.substr(0, end == std::string_view::npos ? 0 : end);
}

/// Returns whether scales of integers have this type: F16, BF16 or F32.
[[nodiscard]] bool is_scale_type(Dtype dtype) noexcept;
/// Requires: is_scale_type().
[[nodiscard]] ScaleType scale_type_of(Dtype dtype) noexcept;

/// Reads I64 or I32 numbers; nothing if the tensor has another type.
[[nodiscard]] std::vector<std::int64_t> read_integers(const SourceTensor& tensor,
                                                      const Interrupt& interrupt);
/// Returns text such as "[64, 100]".
[[nodiscard]] std::string shown_integers(const std::vector<std::int64_t>& values);

/// Reads the scales of rows, or of everything if there is one for all. `stored` keeps the bytes.
[[nodiscard]] PartBytes read_scales(const SourceTensor& scale, std::uint64_t all_rows,
                                    RowRange rows, StoredBytes& stored, const Interrupt& interrupt);

}  // namespace safetensors::weights
