#include "weights/schemes/ct_parts.hpp"

#include <span>

#include "base/text.hpp"

namespace safetensors::weights {

bool is_scale_type(Dtype dtype) noexcept {
  return dtype == Dtype::kF16 || dtype == Dtype::kBF16 || dtype == Dtype::kF32;
}

ScaleType scale_type_of(Dtype dtype) noexcept {
  if (dtype == Dtype::kF16) return ScaleType::f16;
  return dtype == Dtype::kBF16 ? ScaleType::bf16 : ScaleType::f32;
}

std::vector<std::int64_t> read_integers(const SourceTensor& tensor, const Interrupt& interrupt) {
  const std::size_t size = tensor.info->dtype == Dtype::kI64   ? 8
                           : tensor.info->dtype == Dtype::kI32 ? 4
                                                               : 0;
  std::vector<std::int64_t> values;
  if (size == 0) return values;
  const StoredBytes stored = tensor.bytes(interrupt);
  values.reserve(stored.bytes.size() / size);
  for (std::size_t i = 0; i < stored.bytes.size(); i += size) {
    std::uint64_t value = 0;
    for (std::size_t k = size; k-- > 0;) {
      value = value << 8 | std::to_integer<std::uint64_t>(stored.bytes[i + k]);
    }
    values.push_back(size == 8 ? static_cast<std::int64_t>(value)
                               : static_cast<std::int32_t>(static_cast<std::uint32_t>(value)));
  }
  return values;
}

std::string shown_integers(const std::vector<std::int64_t>& values) {
  return safetensors::shown(std::span<const std::int64_t>(values));
}

PartBytes read_scales(const SourceTensor& scale, std::uint64_t all_rows, RowRange rows,
                      StoredBytes& stored, const Interrupt& interrupt) {
  const auto& shape = scale.info->shape;
  const bool is_one = shape.empty() || (shape.size() == 1 && shape[0] == 1);
  const std::uint64_t row = is_one ? 0 : scale.info->nbytes() / all_rows;
  const std::uint64_t begin = rows.begin * row;
  stored = is_one ? scale.bytes(interrupt) : scale.bytes(begin, rows.end * row, interrupt);
  return {stored.bytes.data(), begin};
}

}  // namespace safetensors::weights
