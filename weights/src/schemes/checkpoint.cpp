#include "schemes/checkpoint.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "common/fail.hpp"
#include "schemes/claims.hpp"
#include "schemes/parts.hpp"
#include "schemes/refused.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

/// Returns whether a name has the ending. The module may have no name: then ".scale" is "scale".
bool has_ending(std::string_view name, std::string_view ending) noexcept {
  return name.ends_with(ending) || (ending.rfind('.') == 0 && name == ending.substr(1));
}

}  // namespace

Checkpoint::Checkpoint(const SourceTensors& tensors, const QuantConfig& quant)
    : tensors_(tensors), quant_(quant), owners_(tensors.all().size(), kNobody) {
  (void)names_.build(tensors.all().size(), [&](std::size_t i) { return name_of(i); });
  if (!quant.refusal.empty()) warn("not decoded: " + quant.refusal);
  if (!is_decoded_config(quant)) return;
  claim_comfy(*this);  // markers are read before names and shapes
  for (const SourceTensor& tensor : tensors.all()) {
    if (!settled_.empty() && settled_.contains(module_with_parts(tensor.info->name))) continue;
    for (const Scheme& scheme : all_schemes()) {
      if (!has_ending(tensor.info->name, scheme.ending)) continue;
      const std::size_t before = claims_.size();
      scheme.claim(tensor, *this);
      if (claims_.size() != before || refused_.contains(&tensor)) break;
    }
  }
  Owners dropped = check_parts();
  check_activations(dropped);
  drop(dropped);
  note_quantised();
}

const SourceTensor* Checkpoint::find(std::string_view module, std::string_view ending) const {
  if (module.empty() && ending.starts_with('.')) ending.remove_prefix(1);
  std::string name(module);
  name += ending;
  const auto found = names_.find(name, [&](std::size_t i) { return name_of(i); });
  return found ? &tensors_.all()[*found] : nullptr;
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
  if (name.starts_with('.')) name.erase(0, 1);  // the module has no name
  claims_.push_back({std::move(name), std::move(weight)});
}

void Checkpoint::refuse(const SourceTensor& tensor, std::string text) {
  refused_[&tensor] = &*refusals_.insert(std::move(text)).first;
}

void Checkpoint::refuse_module(const SourceTensor& weight, const std::string& text) {
  remark(weight.info->name, "not decoded: " + text);
  refuse(weight, text);
  settle(module_of(weight));
}

Checkpoint::Owners Checkpoint::check_parts() {
  const std::span<const SourceTensor> all = tensors_.all();
  Owners dropped;
  std::vector<std::string_view> left;
  for_each_codes(all, [&](const ModuleCodes& module) {
    left.clear();
    const std::uint64_t stack = stack_of(all[module.tensor]);
    const auto is_apart = [&](const ModuleCodes::Beside& beside) {
      return is_no_part(beside.role) &&
             (!is_extra_role(beside.role) ||
              is_scale_of_activations(all[beside.tensor], stack, has_heads()));
    };
    const bool is_owned = owners_[module.tensor] != kNobody;
    for (const ModuleCodes::Beside& beside : module.besides) {
      // A claimed weight has the name of a tensor "weight" beside it: an error of its own. It also
      // has its parts, and needs no loose ones.
      const bool is_other = is_owned && (beside.role == "weight" || beside.is_loose);
      if (owners_[beside.tensor] == kNobody && !is_apart(beside) && !is_other) {
        left.push_back(beside.role);
      }
    }
    if (left.empty()) return;
    const SourceTensor& codes = all[module.tensor];
    const auto refusal = refusal_by_parts(module, codes.info->dtype, is_owned, left);
    if (!refusal) return;
    if (is_owned) dropped.insert(owners_[module.tensor]);
    if (!refused_.contains(&codes)) {
      if (refusal->is_by_part) remark(codes.info->name, "not decoded: " + refusal->text);
      refuse(codes, refusal->text);
    }
    for (const ModuleCodes::Beside& beside : module.besides) {
      const SourceTensor& tensor = all[beside.tensor];
      const bool is_plain = !is_code_type(tensor.info->dtype) || is_apart(beside) ||
                            (beside.is_loose && is_claimed(tensor));
      if (!is_plain && !refused_.contains(&tensor)) refuse(tensor, *refused_.at(&codes));
    }
  });
  return dropped;
}

// AutoAWQ may scale an activation function, module A beside the matrices of P:
//
//     P.A.scales    float [K]: the function's values are divided by them
//     P.X.qweight   the matrix that takes them, whose columns were multiplied by them
//
// Nothing says which of the matrices X is.
void Checkpoint::check_activations(Owners& dropped) {
  const bool has_awq = std::ranges::any_of(
      claims_, [](const Claim& claim) { return claim.weight->parts().front().role == "qweight"; });
  if (!has_awq) return;
  const std::span<const SourceTensor> all = tensors_.all();
  std::map<std::string_view, std::string_view> parents;  // with the names of scales
  for (const SourceTensor& tensor : all) {
    const std::string_view module = module_of(tensor);
    if (part_of(tensor).role != "scales" || is_claimed(tensor) || tensor.info->shape.size() != 1 ||
        is_code_type(tensor.info->dtype) || find(module, ".weight") != nullptr ||
        find(module, ".qweight") != nullptr) {
      continue;
    }
    const std::size_t end = module.rfind('.');
    parents.emplace(module.substr(0, end == std::string_view::npos ? 0 : end + 1),
                    tensor.info->name);
  }
  for (const auto& [parent, scales] : parents) {
    const auto name_of_tensor = [](const SourceTensor& tensor) -> std::string_view {
      return tensor.info->name;
    };
    const std::string text = "`" + clipped(scales) +
                             "` divides values between the matrices of its module, and the columns "
                             "of one were multiplied by it. Decoding without it would give wrong "
                             "values. get_tensor() reads the parts as stored";
    for (auto each = std::ranges::lower_bound(all, parent, {}, name_of_tensor);
         each != all.end() && name_of_tensor(*each).starts_with(parent); ++each) {
      const bool is_matrix = each->info->shape.size() > 1 && part_of(*each).role == "weight";
      if (refused_.contains(&*each) || !(is_matrix || is_code_type(each->info->dtype))) continue;
      if (is_claimed(*each)) dropped.insert(owners_[index_of(*each)]);
      if (is_matrix || part_of(*each).role == "qweight") {
        remark(each->info->name, "not decoded: " + text);
      }
      refuse(*each, text);
    }
  }
}

/// Makes tensors of their own of the parts of claims.
void Checkpoint::drop(const Owners& owners) {
  if (owners.empty()) return;
  std::erase_if(claims_, [&](const Claim& claim) {
    return owners.contains(owners_[index_of(*claim.weight->parts().front().tensor)]);
  });
  for (std::uint32_t& owner : owners_) {
    if (owners.contains(owner)) owner = kNobody;
  }
}

/// Notes the modules with decoded weights, and those above, which have the scales of caches.
void Checkpoint::note_quantised() {
  for (const Claim& claim : claims_) {
    const SourceTensor& codes = *claim.weight->parts().front().tensor;
    const std::string_view module = module_with_parts(codes.info->name);
    const std::size_t end = module.rfind('.');
    quantised_[module] = stack_of(codes);
    quantised_.emplace(module.substr(0, end == std::string_view::npos ? 0 : end), 0);
  }
}

bool Checkpoint::is_extra(const SourceTensor& tensor) const {
  if (!is_extra_role(part_of(tensor).role)) return false;
  const auto found = quantised_.find(module_with_parts(tensor.info->name));
  if (found == quantised_.end() && quant_.method.empty()) return false;
  return is_scale_of_activations(tensor, found == quantised_.end() ? 0 : found->second,
                                 has_heads());
}

const std::string* Checkpoint::refusal_of(const SourceTensor& tensor) {
  const auto refused = refused_.find(&tensor);
  if (refused != refused_.end()) return refused->second;
  const std::string text = refusal_by_config(tensor, quant_);
  return text.empty() ? nullptr : &*refusals_.insert(text).first;
}

}  // namespace safetensors::weights
