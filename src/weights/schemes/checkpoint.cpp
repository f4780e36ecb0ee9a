#include "weights/schemes/checkpoint.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "weights/fail.hpp"
#include "weights/schemes/refused.hpp"
#include "weights/schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

/// Last components of the names of scales that belong to activations and caches.
constexpr std::string_view kExtras[] = {
    "activation_scale", "input_global_scale", "input_scale", "k_scale", "output_scale",
    "q_scale",          "qscale_act",         "v_scale",
};

}  // namespace

Checkpoint::Checkpoint(const SourceTensors& tensors, const QuantConfig& quant)
    : tensors_(tensors), quant_(quant), owners_(tensors.all().size(), kNobody) {
  if (is_refused(quant.method)) return;
  for (const SourceTensor& tensor : tensors.all()) {
    for (const Scheme& scheme : all_schemes()) {
      if (!tensor.info->name.ends_with(scheme.ending)) continue;
      const std::size_t before = claims_.size();
      scheme.claim(tensor, *this);
      if (claims_.size() != before || refused_.contains(&tensor)) break;
    }
  }
}

const SourceTensor* Checkpoint::find(std::string_view module, std::string_view ending) const {
  std::string name(module);
  name += ending;
  return tensors_.find(name);
}

const Checkpoint::Metadata& Checkpoint::metadata_of(const SourceTensor& tensor) {
  const auto [found, is_new] = metadata_.try_emplace(tensor.file);
  if (is_new) {
    const auto items = tensor.file->header().metadata();
    found->second.insert(items.begin(), items.end());
  }
  return found->second;
}

void Checkpoint::claim(const SourceTensor& by, std::string name,
                       std::unique_ptr<StoredWeight> weight) {
  const auto owner = static_cast<std::uint32_t>(index_of(by));
  for (const Part& part : weight->parts()) {
    std::uint32_t& other = owners_[index_of(*part.tensor)];
    if (other != kNobody && other != owner) {
      fail(Errc::duplicate, by.file->path(), part.tensor->info->name,
           "`" + clipped(tensors_.all()[other].info->name) + "` and `" + clipped(by.info->name) +
               "` both belong to it");
    }
    other = owner;
  }
  claims_.push_back({std::move(name), std::move(weight)});
}

void Checkpoint::refuse(const SourceTensor& tensor, std::string text) {
  refused_[&tensor] = &*refusals_.insert(std::move(text)).first;
}

bool Checkpoint::is_extra(const SourceTensor& tensor) const noexcept {
  if (claims_.empty() && quant_.method.empty()) return false;
  return std::ranges::binary_search(kExtras, part_of(tensor).role);
}

const std::string* Checkpoint::refusal_of(const SourceTensor& tensor) {
  const auto refused = refused_.find(&tensor);
  if (refused != refused_.end()) return refused->second;
  const std::string text = refusal_by_rule(tensors_, tensor, quant_.method);
  return text.empty() ? nullptr : &*refusals_.insert(text).first;
}

}  // namespace safetensors::weights
