#include "model/backend.hpp"

#include <algorithm>
#include <utility>

#include "base/parse_integer.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "model/norm_offset.hpp"

namespace safetensors::weights {

namespace {

/// Warns if the configuration and the names of tensors disagree about the number of layers. No
/// other code depends on that.
void check_layers(Model& model) {
  std::int64_t layers = 0;
  for (const WeightInfo& info : model.tensors) {
    const auto layer = parse_integer<std::int64_t>(split_layer(info.name).layer);
    if (layer) layers = std::max(layers, *layer + 1);
  }
  if (layers == 0 || !model.config.n_layers || *model.config.n_layers == layers) return;
  model.warnings.push_back("the configuration says " + std::to_string(*model.config.n_layers) +
                           " layers, and there are tensors for " + std::to_string(layers));
}

}  // namespace

void Model::add(WeightInfo info, bool is_mapped) {
  std::vector<WeightInfo>& list = is_mapped ? tensors : others;
  if (!list.empty() && list.back().name == info.name) {
    fail(Errc::duplicate, path, info.name,
         is_mapped ? "`" + clipped(list.back().source) + "` and `" + clipped(info.source) +
                         "` both map to it"
                   : "two tensors have this name");
  }
  info.name.shrink_to_fit();
  list.push_back(std::move(info));
}

void Model::reserve(std::span<const Mapped> mapped) {
  const auto count = [&](Mapped::Kind kind) {
    return static_cast<std::size_t>(std::ranges::count(mapped, kind, &Mapped::kind));
  };
  tensors.reserve(count(Mapped::Kind::canonical));
  others.reserve(count(Mapped::Kind::unmapped));
}

std::vector<std::uint32_t> order_of(std::span<const std::string_view> names,
                                    std::span<const Mapped> mapped) {
  std::vector<std::uint32_t> order;
  order.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (mapped[i].kind != Mapped::Kind::ignored) order.push_back(static_cast<std::uint32_t>(i));
  }
  const auto is_mapped = [&](std::uint32_t i) { return mapped[i].kind == Mapped::Kind::canonical; };
  const auto name_of = [&](std::uint32_t i) -> std::string_view {
    return is_mapped(i) ? std::string_view(mapped[i].name) : names[i];
  };
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
    if (is_mapped(a) != is_mapped(b)) return is_mapped(a);
    return name_less(name_of(a), name_of(b));
  });
  return order;
}

void finish_model(Model& model) {
  ModelConfig& config = model.config;
  if (model.format != Format::gguf) config.norm_weight_offset = find_norm_offset(model);
  if (config.architecture) {
    const std::string of =
        " is not known for the architecture `" + clipped(*config.architecture) + "`";
    if (!config.rope_style) model.warnings.push_back("rope_style" + of);
    if (!config.norm_weight_offset) model.warnings.push_back("norm_weight_offset" + of);
  }
  const bool has_output =
      std::ranges::find(model.tensors, "output.weight", &WeightInfo::name) != model.tensors.end();
  if (!config.tie_word_embeddings && !has_output) {
    model.warnings.emplace_back("tie_word_embeddings is false, but there is no output.weight");
  }
  check_layers(model);
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
