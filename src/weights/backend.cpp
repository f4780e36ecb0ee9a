#include "weights/backend.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/text.hpp"
#include "weights/fail.hpp"
#include "weights/names.hpp"

namespace safetensors::weights {

void Model::add(TensorInfo info, bool is_mapped) {
  std::vector<TensorInfo>& list = is_mapped ? tensors : others;
  if (is_mapped && !list.empty() && list.back().name == info.name) {
    fail(Errc::duplicate, path, info.name,
         "`" + clipped(list.back().source) + "` and `" + clipped(info.source) + "` both are it");
  }
  list.push_back(std::move(info));
}

bool comes_before(const TensorInfo& a, bool a_is_mapped, const TensorInfo& b,
                  bool b_is_mapped) noexcept {
  if (a_is_mapped != b_is_mapped) return a_is_mapped;
  return name_less(a.name, b.name);
}

void check_layers(Model& model) {
  std::int64_t layers = 0;
  for (const TensorInfo& info : model.tensors) {
    const std::string_view digits = split_layer(info.name).layer;
    std::int64_t layer = -1;
    std::from_chars(digits.data(), digits.data() + digits.size(), layer);  // six digits at most
    layers = std::max(layers, layer + 1);
  }
  if (layers == 0 || !model.config.n_layers || *model.config.n_layers == layers) return;
  model.warnings.push_back("the configuration says " + std::to_string(*model.config.n_layers) +
                           " layers, and there are tensors for " + std::to_string(layers));
}

std::uint64_t row_count(std::span<const std::int64_t> shape) noexcept {
  std::uint64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < shape.size(); ++axis) {
    rows *= static_cast<std::uint64_t>(shape[axis]);
  }
  return rows;
}

std::uint64_t row_length(std::span<const std::int64_t> shape) noexcept {
  return shape.empty() ? 1 : static_cast<std::uint64_t>(shape.back());
}

}  // namespace safetensors::weights
