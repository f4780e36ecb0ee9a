#include "gguf/shapes.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.hpp"

namespace safetensors::weights {
namespace {

/// Returns the axes that a value lists; nothing if it is no array of 1 to kMaxDims lengths.
std::optional<std::vector<std::int64_t>> axes_of(const MetaValue& value) {
  const std::optional<MetaArray> array = value.as_array();
  if (!array || array->size() == 0 || array->size() > GgufTensor::kMaxDims) return std::nullopt;
  std::vector<std::int64_t> axes;
  for (const MetaValue element : *array) {
    const std::optional<std::int64_t> length = element.as_int64();
    if (!length || *length < 0) return std::nullopt;
    axes.push_back(*length);
  }
  return axes;
}

/// Returns the number of values; nothing if it does not fit into 64 bits. Axes are not negative.
template <typename Axes>
std::optional<std::uint64_t> value_count(const Axes& axes) {
  if (std::ranges::find(axes, 0) != axes.end()) return 0;
  std::optional<std::uint64_t> count = 1;
  for (const std::int64_t length : axes) {
    count = checked_multiply(*count, static_cast<std::uint64_t>(length));
    if (!count) break;
  }
  return count;
}

}  // namespace

std::vector<std::int64_t> shape_of(const GgufTensor& tensor, const ModelMetadata& metadata,
                                   std::vector<std::string>& unused) {
  const auto stored = tensor.shape();
  std::string key = "comfy.gguf.orig_shape.";
  key += tensor.name;
  const MetaValue* const value = metadata.find(key);
  if (value != nullptr) {
    auto axes = axes_of(*value);
    // The stored shape has less than 2^63 values.
    if (axes && value_count(*axes) == value_count(stored)) return std::move(*axes);
    unused.push_back(std::move(key));
  }
  return {stored.begin(), stored.end()};
}

}  // namespace safetensors::weights
