#include "schemes/conv1d.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

namespace safetensors::weights {
namespace {

/// Types of models with Conv1D: those of transformers, and two whose code is on the Hub.
constexpr std::string_view kConv1dModels[] = {
    "btlm", "clvp",     "clvp_decoder", "decision_transformer",
    "gpt2", "imagegpt", "jais",         "openai-gpt",
};

/// Modules of Conv1D, and those that have them.
constexpr std::string_view kConv1dModules[] = {"c_attn", "c_fc", "c_fc2", "c_proj", "q_attn"};
constexpr std::string_view kConv1dParents[] = {"attn", "crossattention", "mlp"};

/// Removes the last component of a name, and returns it.
std::string_view take_last_component(std::string_view& name) noexcept {
  const std::size_t dot = name.rfind('.');
  const std::string_view last = name.substr(dot + 1);  // npos + 1 is 0
  name = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  return last;
}

/// Returns whether a weight has the name of a Conv1D's. If the type of the model is not known, only
/// GPT-2's own names count: "h.0.attn.c_attn.weight".
bool is_name_of_conv1d(std::string_view name, bool is_type_known) noexcept {
  (void)take_last_component(name);  // "weight"
  const std::string_view module = take_last_component(name);
  const std::string_view parent = take_last_component(name);
  if (std::ranges::find(kConv1dModules, module) == std::end(kConv1dModules) ||
      std::ranges::find(kConv1dParents, parent) == std::end(kConv1dParents)) {
    return false;
  }
  (void)take_last_component(name);  // the number of the layer
  return is_type_known || take_last_component(name) == "h";
}

/// A weight with its two axes exchanged. Its parts and its buffer are those of the weight.
class TransposedWeight final : public StoredWeight {
 public:
  explicit TransposedWeight(std::unique_ptr<SchemeWeight> weight) : weight_(std::move(weight)) {}

  void fill(const ModelOptions& options, WeightInfo& info) const override {
    weight_->fill(options, info);
    std::swap(info.shape[0], info.shape[1]);
  }

  std::vector<Part> parts() const override { return weight_->parts(); }

  void decode(const WeightInfo& info, RowRange rows, Output output, std::byte* to,
              const Interrupt& interrupt) const override {
    constexpr std::uint64_t kBufferBytes = 1 << 20;
    WeightInfo stored = info;
    std::swap(stored.shape[0], stored.shape[1]);
    const std::size_t size = size_of(output);
    const std::uint64_t all = row_count(stored.shape);
    const std::uint64_t columns = row_length(stored.shape);
    const std::uint64_t step = std::clamp<std::uint64_t>(kBufferBytes / (columns * size), 1, all);
    std::vector<std::byte> buffer(static_cast<std::size_t>(step * columns * size));
    for (std::uint64_t first = 0; first < all; first += step) {
      const std::uint64_t end = std::min(first + step, all);
      weight_->decode(stored, {first, end}, output, buffer.data(), interrupt);
      for (std::uint64_t row = first; row < end; ++row) {
        const std::byte* from = buffer.data() + (row - first) * columns * size;
        for (std::uint64_t column = rows.begin; column < rows.end; ++column) {
          std::memcpy(to + ((column - rows.begin) * all + row) * size, from + column * size, size);
        }
      }
    }
  }

  bool fuses_with(const WeightInfo& /*info*/, const StoredWeight& /*other*/,
                  const WeightInfo& /*next*/, const ModelOptions& /*options*/) const override {
    return false;
  }

 private:
  std::unique_ptr<SchemeWeight> weight_;
};

}  // namespace

std::optional<bool> has_conv1d(const Json* config) {
  if (config == nullptr || config->as_object() == nullptr) return std::nullopt;
  const auto has_type = [](const Json& object) {
    const Json* type = object.find("model_type");
    const std::string* text = type == nullptr ? nullptr : type->as_string();
    return text != nullptr && std::ranges::find(kConv1dModels, *text) != std::end(kConv1dModels);
  };
  const bool has_part = std::ranges::any_of(
      *config->as_object(), [&](const Json::Member& part) { return has_type(part.second); });
  if (has_type(*config) || has_part) return true;
  const Json* type = config->find("model_type");
  if (type == nullptr || type->as_string() == nullptr) return std::nullopt;
  return false;
}

void claim_linear(const SourceTensor& by, const SourceTensor& codes, std::string name,
                  std::unique_ptr<SchemeWeight> weight, Checkpoint& checkpoint) {
  const std::optional<bool> has = checkpoint.quant().has_conv1d;
  WeightInfo info;
  if (has != false && is_name_of_conv1d(name, has.has_value())) weight->fill({}, info);
  if (info.shape.size() != 2) {
    checkpoint.claim(by, std::move(name), std::move(weight));
  } else if (has.has_value()) {
    checkpoint.claim(by, std::move(name), std::make_unique<TransposedWeight>(std::move(weight)));
  } else {
    const std::string text =
        "its name is one of GPT-2, whose layers are stored transposed, and there is no model_type "
        "in config.json, which says whether it is GPT-2. get_tensor() reads the parts as stored";
    checkpoint.remark(codes.info->name, "not decoded: " + text);
    checkpoint.refuse(codes, text);
  }
}

}  // namespace safetensors::weights
