#include "hf/packs.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "dequant/scale_type.hpp"
#include "names/names.hpp"
#include "schemes/module_rules.hpp"

namespace safetensors::weights {
namespace {

using Shape = std::span<const std::uint64_t>;

std::string described(const SourceTensor& tensor) {
  return std::string(safetensors::name(tensor.info->dtype)) + " " +
         safetensors::shown(tensor.info->shape);
}

/// Throws quant_mismatch with the shapes of all parts.
[[noreturn]] void mismatch(const PackTensors& pack, const std::string& what) {
  fail(Errc::quant_mismatch, pack.words->file->path(), pack.words->info->name,
       what + ": " + described(pack));
}

/// Returns all axes but the last.
Shape leading(const SourceTensor& tensor) {
  return tensor.info->shape.first(tensor.info->shape.size() - 1);
}
std::uint64_t last(const SourceTensor& tensor) { return tensor.info->shape.back(); }

/// Chooses the parameters of a pack: those of its own entry; without a configuration the caller's;
/// else by its shapes and other evidence.
QuantChoice choose(const PackTensors& pack, std::string_view canonical, const ModuleQuant* entry,
                   const HfConfig& config, const RowLengths& lengths,
                   const std::optional<QuantParams>& given) {
  if (entry != nullptr && entry->quant) return {entry->quant, {}};
  if (!config.model.quantization) return {given, {}};
  const std::uint64_t groups = last(*pack.scales);
  const auto candidates = candidates_of(last(*pack.words), groups, pack.scales->info->dtype);
  const RowEvidence evidence = canonical.empty() ? RowEvidence{} : lengths.of(canonical);
  return choose_quant(candidates, groups, evidence, config.model.quantization, given);
}

void check_shapes(const PackTensors& pack) {
  const Shape words = pack.words->info->shape;
  if (pack.words->info->dtype != Dtype::kU32) mismatch(pack, "packed words must be U32");
  if (words.empty() || pack.scales->info->shape.size() != words.size() ||
      !std::ranges::equal(leading(*pack.words), leading(*pack.scales))) {
    mismatch(pack, "scales must have the weight's leading axes");
  }
  if (pack.biases != nullptr &&
      (pack.biases->info->dtype != pack.scales->info->dtype ||
       !std::ranges::equal(pack.biases->info->shape, pack.scales->info->shape))) {
    mismatch(pack, "biases must have the scales' type and shape");
  }
}

void check_params(const PackTensors& pack, const QuantParams& quant) {
  const std::string whole = " for " + shown(quant);
  if (!is_known(quant)) mismatch(pack, "there are no packs of " + shown(quant));
  const bool affine = quant.mode == QuantMode::affine;
  if (affine != (pack.biases != nullptr)) {
    mismatch(pack, (affine ? "biases are missing" : "there must be no biases") + whole);
  }
  const Dtype scales = pack.scales->info->dtype;
  if (affine ? !is_scale_type(scales) : scales != Dtype::kU8) {
    mismatch(pack, "scales are of the wrong type" + whole);
  }
  const auto bits = static_cast<std::uint64_t>(quant.bits);
  const auto group = static_cast<std::uint64_t>(quant.group_size);
  const auto row_bits = checked_multiply(last(*pack.words), 32);
  const auto values = checked_multiply(last(*pack.scales), group);
  if (!row_bits || !values || *row_bits % bits != 0 || *row_bits / bits != *values) {
    mismatch(pack, "words and scales disagree about the length of a row" + whole);
  }
  if (pack.global_scale == nullptr) return;
  const safetensors::TensorInfo& global = *pack.global_scale->info;
  const std::uint64_t count = global.nbytes() / sizeof(float);
  const std::uint64_t stacked = pack.words->info->shape.size() > 2 ? pack.words->info->shape[0] : 1;
  if (quant.mode != QuantMode::nvfp4 || global.dtype != Dtype::kF32 ||
      (count != 1 && count != stacked)) {
    mismatch(pack, "the global scale does not fit" + whole);
  }
}

}  // namespace

ModuleEntries::ModuleEntries(const HfConfig& config, std::span<const SourceTensor> tensors)
    : config_(config) {
  if (config.modules.empty()) return;
  for (const Entry& entry : config.modules) {
    const auto [place, is_new] = by_inner_.try_emplace(inner_name(entry.first), &entry);
    if (!is_new) place->second = nullptr;
  }
  std::set<std::string_view> seen;
  for (const SourceTensor& tensor : tensors) {
    const NameParts parts = split_param(tensor.info->name);
    if (parts.param != "weight") continue;
    const std::string_view inner = inner_name(parts.module);
    if (!seen.insert(inner).second) by_inner_.erase(inner);
  }
}

const ModuleQuant* ModuleEntries::find(std::string_view module) {
  if (config_.modules.empty()) return nullptr;
  const ModuleQuant* found = nullptr;
  if (const auto exact = config_.modules.find(std::string(module));
      exact != config_.modules.end()) {
    found = &exact->second;
  } else if (const auto inner = by_inner_.find(inner_name(module));
             inner != by_inner_.end() && inner->second != nullptr) {
    found = &inner->second->second;
  }
  if (found != nullptr) used_.insert(found);
  return found;
}

void ModuleEntries::say_unused(std::vector<std::string>& warnings) const {
  std::vector<std::string_view> unused;
  for (const Entry& entry : config_.modules) {
    if (entry.second.quant && !used_.contains(&entry.second)) unused.push_back(entry.first);
  }
  say_unmatched("quantization", unused, warnings);
}

std::string described(const PackTensors& pack) {
  std::string text = "weight " + described(*pack.words);
  if (pack.scales != nullptr) text += ", scales " + described(*pack.scales);
  if (pack.biases != nullptr) text += ", biases " + described(*pack.biases);
  if (pack.global_scale != nullptr) text += ", global_scale " + described(*pack.global_scale);
  return text;
}

std::optional<Pack> find_pack(const SourceTensors& tensors, const SourceTensor& weight,
                              std::string_view canonical, const HfConfig& config,
                              ModuleEntries& entries, const RowLengths& lengths,
                              const std::optional<QuantParams>& given) {
  const NameParts parts = split_param(weight.info->name);
  if (parts.param != "weight" || config.model.quantization_method) return std::nullopt;
  const std::string module(parts.module);
  const SourceTensor* scales = tensors.find(module + ".scales");
  const ModuleQuant* entry = entries.find(module);
  const bool has_words = weight.info->dtype == Dtype::kU32;
  if (scales == nullptr && !has_words) return std::nullopt;  // as most weights
  const PackTensors pack{&weight, scales, tensors.find(module + ".biases"),
                         tensors.find(module + ".global_scale")};
  if (pack.scales == nullptr) {
    if (pack.biases != nullptr) mismatch(pack, "there are biases and no scales");
    return std::nullopt;
  }
  if (entry != nullptr && !entry->is_pack) {
    mismatch(pack, "the configuration says that it is not quantised");
  }
  const bool expected = entry != nullptr || config.model.quantization || given;
  if (!expected && !has_words) return std::nullopt;  // scales of another scheme
  check_shapes(pack);
  QuantChoice quant = choose(pack, canonical, entry, config, lengths, given);
  if (quant.params) check_params(pack, *quant.params);
  return Pack{pack, std::move(quant)};
}

}  // namespace safetensors::weights
