#include "schemes/scheme.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "common/divide_up.hpp"
#include "common/fail.hpp"
#include "dequant/scale_type.hpp"

namespace safetensors::weights {
namespace {

/// Returns whether the first axis of each part is that of the weight: whole, or in groups of rows
/// if the part is no vector. A scale for the whole weight is not a row.
bool parts_have_rows(const std::vector<Part>& parts, const WeightInfo& info) {
  const auto rows = static_cast<std::uint64_t>(info.shape.front());
  const std::uint64_t group = info.shape.size() == 2 ? info.scheme_params.group_rows : 1;
  return std::ranges::all_of(parts, [&](const Part& part) {
    const auto& shape = part.tensor->info->shape;
    if (shape.empty()) return false;
    const std::uint64_t groups = divide_up(rows, group);
    return shape.front() == rows || (shape.size() > 1 && shape.front() == groups);
  });
}

/// Returns whether two parts differ in their number of rows at most.
bool have_equal_rows(const Part& a, const Part& b) {
  const safetensors::TensorInfo& x = *a.tensor->info;
  const safetensors::TensorInfo& y = *b.tensor->info;
  if (x.dtype != y.dtype || x.shape.size() != y.shape.size()) return false;
  return !x.shape.empty() && std::ranges::equal(x.shape.subspan(1), y.shape.subspan(1));
}

}  // namespace

void SchemeWeight::fill(const ModelOptions& /*options*/, WeightInfo& info) const {
  info.storage = Storage::scheme;
  for (const Part& part : parts()) info.stored_bytes += part.tensor->info->nbytes();
  describe(info);
}

bool SchemeWeight::fuses_with(const WeightInfo& info, const StoredWeight& other,
                              const WeightInfo& next, const ModelOptions& /*options*/) const {
  const auto* const scheme = dynamic_cast<const SchemeWeight*>(&other);
  if (scheme == nullptr || !stores_rows() || !scheme->stores_rows() || info.scheme != next.scheme ||
      info.scheme_params != next.scheme_params || info.shape.size() != next.shape.size() ||
      info.shape.size() < 2) {
    return false;
  }
  const std::vector<Part> mine = parts();
  const std::vector<Part> others = other.parts();
  // A group of rows that is not full may only be the last.
  const bool is_whole =
      info.shape.size() > 2 ||
      static_cast<std::uint64_t>(info.shape.front()) % info.scheme_params.group_rows == 0;
  return is_whole && std::ranges::equal(mine, others, have_equal_rows) &&
         parts_have_rows(mine, info) && parts_have_rows(others, next);
}

std::uint64_t count_of(const SourceTensor& tensor) noexcept {
  return tensor.info->nbytes() * 8 / bit_size(tensor.info->dtype);
}

bool is_whole_scale(const SourceTensor& scale, const SourceTensor& stack) noexcept {
  const std::uint64_t count = count_of(scale);
  const auto& shape = stack.info->shape;
  return count == 1 || (shape.size() > 2 && count == shape.front() && count != 0);
}

std::vector<float> floats_of(const SourceTensor* tensor, const Interrupt& interrupt,
                             std::optional<RowRange> rows) {
  if (tensor == nullptr) return {};
  const std::uint64_t size = bit_size(tensor->info->dtype) / 8;
  const RowRange range = rows.value_or(RowRange{0, count_of(*tensor)});
  const StoredBytes stored = tensor->bytes(range.begin * size, range.end * size, interrupt);
  std::vector<float> values(static_cast<std::size_t>(range.end - range.begin));
  convert_values(tensor->info->dtype, stored.bytes.data(), values.size(), Output::f32,
                 reinterpret_cast<std::byte*>(values.data()), interrupt);
  return values;
}

void check_column_scales(std::span<const Part> parts, const SourceTensor* scales,
                         std::uint64_t columns) {
  if (scales == nullptr) return;
  const auto& shape = scales->info->shape;
  const bool is_row = shape.size() == 1 || (shape.size() == 2 && shape[0] == 1);
  if (is_scale_type(scales->info->dtype) && is_row && shape.back() == columns) return;
  mismatch(parts, "`" + clipped(part_of(*scales).role) + "` must have a float for each of " +
                      std::to_string(columns) + " columns");
}

void mismatch(std::span<const Part> parts, const std::string& what) {
  std::string text = what;
  std::string_view separator = ": ";
  for (const Part& part : parts) {
    const safetensors::TensorInfo& info = *part.tensor->info;
    text += separator;
    text += clipped(part.role) + " " + std::string(name(info.dtype)) + " " +
            safetensors::shown(info.shape);
    separator = ", ";
  }
  const SourceTensor& first = *parts.front().tensor;
  fail(Errc::quant_mismatch, first.file->path(), first.info->name, text);
}

}  // namespace safetensors::weights
