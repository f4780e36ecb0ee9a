#include "schemes/parts.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/text.hpp"
#include "common/name_index.hpp"

namespace safetensors::weights {
namespace {

/// Names of codes without their modules, beside which every tensor of the module counts.
constexpr std::string_view kCodeLeaves[] = {"blocks",        "qweight",      "weight",
                                            "weight_packed", "weight._data", "weight._data._data"};

/// Last components of the names of scales that belong to activations and caches.
constexpr std::string_view kExtras[] = {
    "activation_scale",
    "activation_scale_ub",
    "input_global_scale",
    "input_scale",
    "input_scale_ub",
    "input_zero_point",
    "k_scale",
    "k_zero_point",
    "output_scale",
    "output_zero_point",
    "q_scale",
    "q_zero_point",
    "qscale_act",
    "scale_input",
    "v_scale",
    "v_zero_point",
};

/// Statistics of batch norms, whose weights may be cast to F8.
constexpr std::string_view kStatistics[] = {"num_batches_tracked", "running_mean", "running_var"};

/// What names of scales, zero points and tables of values contain, and names that contain it
/// although no codes depend on them: the temperature of CLIP, and shifts and scales of activations
/// by time in diffusion models.
constexpr std::string_view kPartWords[] = {"SCB", "absmax", "codebook", "scale", "zero"};
constexpr std::string_view kOtherWords[] = {"logit_scale", "scale_shift"};

std::uint8_t set_of(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2:
    case Dtype::kF8E4M3FNUZ:
    case Dtype::kF8E5M2FNUZ:
      return codes::kF8;
    case Dtype::kI8:
      return codes::kI8 | codes::kBytes;
    case Dtype::kU8:
    case Dtype::kF4:
      return codes::kBytes;
    case Dtype::kI32:
      return codes::kI32;
    case Dtype::kU32:
      return codes::kU32;
    default:
      return 0;
  }
}

/// Returns the length of the module's name: 1 of "M.weight" and of "M.weight.absmax".
std::uint32_t module_length(std::string_view name) noexcept {
  constexpr std::string_view kInner = "weight.";
  const std::size_t last = name.rfind('.');
  for (std::size_t dot = last; dot != std::string_view::npos; dot = name.rfind('.', dot - 1)) {
    if (name.substr(dot + 1).starts_with(kInner)) return static_cast<std::uint32_t>(dot);
    if (dot == 0) break;
  }
  if (name.starts_with(kInner)) return 0;
  return last == std::string_view::npos ? 0 : static_cast<std::uint32_t>(last);
}

std::string_view leaf_of(std::string_view name, std::uint32_t module) noexcept {
  name.remove_prefix(module);
  if (name.starts_with('.')) name.remove_prefix(1);
  return name;
}

bool is_code_leaf(std::string_view leaf) noexcept {
  return std::ranges::find(kCodeLeaves, leaf) != std::end(kCodeLeaves);
}

/// Returns whether a tensor with this name in its module may be a part of codes beside it.
bool is_like_part(std::string_view leaf) noexcept {
  const auto has = [&](std::string_view word) { return leaf.find(word) != std::string_view::npos; };
  return std::ranges::any_of(kPartWords, has) && std::ranges::none_of(kOtherWords, has) &&
         !is_no_part(leaf);
}

/// The tensors of one module.
class Module {
 public:
  explicit Module(std::span<const SourceTensor> tensors) : tensors_(tensors) {}

  void clear() noexcept {
    leaves_.clear();
    loose_.clear();
  }
  void add(std::string_view leaf, std::uint32_t tensor) { leaves_.push_back({leaf, tensor}); }

  void look_at_codes(const std::function<void(const ModuleCodes&)>& look) {
    const bool has_leaf = std::ranges::any_of(leaves_, [&](const ModuleCodes::Beside& each) {
      return is_code_leaf(each.role) && is_code_type(dtype_of(each));
    });
    if (!has_leaf) find_loose();
    for (const ModuleCodes::Beside& each : leaves_) {
      if (!is_code_type(dtype_of(each))) continue;
      const bool is_leaf = is_code_leaf(each.role);
      if (!is_leaf && (has_leaf || !has_axes(each))) continue;
      set_codes(each, is_leaf);
      look(codes_);
    }
  }

 private:
  Dtype dtype_of(const ModuleCodes::Beside& each) const noexcept {
    return tensors_[each.tensor].info->dtype;
  }

  bool has_axes(const ModuleCodes::Beside& each) const noexcept {
    return tensors_[each.tensor].info->shape.size() > 1;
  }

  /// Returns whether the name is that of codes X and "_LEAF".
  bool is_part_of_codes(std::string_view role) const {
    for (std::size_t end = role.rfind('_'); end != std::string_view::npos && end != 0;
         end = role.rfind('_', end - 1)) {
      const auto found =
          std::ranges::lower_bound(leaves_, role.substr(0, end), {}, &ModuleCodes::Beside::role);
      if (found != leaves_.end() && found->role == role.substr(0, end) && has_axes(*found) &&
          is_code_type(dtype_of(*found))) {
        return true;
      }
    }
    return false;
  }

  void find_loose() {
    for (const ModuleCodes::Beside& each : leaves_) {
      if (is_like_part(each.role) && !is_part_of_codes(each.role)) {
        loose_.push_back({tensors_[each.tensor].info->name, each.tensor, true});
      }
    }
  }

  /// Adds the tensors beside codes X that only their names tell.
  void add_others(const ModuleCodes::Beside& codes) {
    const SourceTensor& tensor = tensors_[codes.tensor];
    std::string inner(tensor.info->name);
    inner += '.';
    const auto name_of = [](const SourceTensor& each) -> std::string_view {
      return each.info->name;
    };
    for (auto each = std::ranges::lower_bound(tensors_, std::string_view(inner), {}, name_of);
         each != tensors_.end() && name_of(*each).starts_with(inner); ++each) {
      if (is_no_part(name_of(*each).substr(inner.size()))) continue;
      codes_.besides.push_back(
          {name_of(*each), static_cast<std::uint32_t>(each - tensors_.begin())});
    }
    // A part that has the type of F8 codes was cast to it with them.
    if (is_like_part(codes.role) || is_no_part(codes.role)) return;
    for (const ModuleCodes::Beside& each : loose_) {
      const bool is_cast = is_f8(tensor.info->dtype) && dtype_of(each) == tensor.info->dtype;
      if (!is_cast) codes_.besides.push_back(each);
    }
  }

  void set_codes(const ModuleCodes::Beside& codes, bool is_leaf) {
    codes_.tensor = codes.tensor;
    codes_.role = {};
    stem_.clear();
    if (is_leaf) {
      codes_.role = codes.role;
    } else {
      stem_ = codes.role;
      for (const std::string_view ending : {"_blocks", "_qdata", ":qdata"}) {
        if (!codes.role.ends_with(ending)) continue;
        codes_.role = ending.substr(1);
        stem_.resize(stem_.size() - codes_.role.size());
      }
      if (codes_.role.empty()) stem_ += '_';
    }
    codes_.besides.clear();
    for (const ModuleCodes::Beside& each : leaves_) {
      if (each.tensor == codes.tensor || !each.role.starts_with(stem_)) continue;
      codes_.besides.push_back({each.role.substr(stem_.size()), each.tensor});
    }
    if (codes_.role.empty()) add_others(codes);
  }

  std::span<const SourceTensor> tensors_;
  std::vector<ModuleCodes::Beside> leaves_;  ///< sorted by their roles, names without the module's
  std::vector<ModuleCodes::Beside> loose_;
  ModuleCodes codes_;
  std::string stem_;
};

}  // namespace

std::string_view module_with_parts(std::string_view name) noexcept {
  return name.substr(0, module_length(name));
}

bool is_f8(Dtype dtype) noexcept { return set_of(dtype) == codes::kF8; }

bool is_code_type(Dtype dtype) noexcept {
  return set_of(dtype) != 0 || dtype == Dtype::kF8E8M0 || dtype == Dtype::kI16 ||
         dtype == Dtype::kU16;
}

bool is_extra_role(std::string_view role) noexcept {
  return std::ranges::binary_search(kExtras, role);
}

bool is_scale_of_activations(const SourceTensor& tensor, std::uint64_t stack,
                             bool has_heads) noexcept {
  const auto& shape = tensor.info->shape;
  const auto is_one = [](std::uint64_t axis) { return axis == 1; };
  if (std::ranges::all_of(shape, is_one)) return true;
  if (!std::ranges::all_of(shape.subspan(1), is_one)) return false;
  return shape.front() == stack || (has_heads && shape.size() == 3);
}

bool is_no_part(std::string_view role) noexcept {
  return role == "bias" || role.ends_with("_bias") || is_extra_role(role) ||
         std::ranges::binary_search(kStatistics, role);
}

void for_each_codes(std::span<const SourceTensor> tensors,
                    const std::function<void(const ModuleCodes&)>& look) {
  constexpr std::uint32_t kEnd = 0xFFFF'FFFF;
  const auto has_codes = [](const SourceTensor& tensor) {
    return is_code_type(tensor.info->dtype);
  };
  if (std::ranges::none_of(tensors, has_codes)) return;
  std::vector<std::uint32_t> lengths;  // of the modules' names
  lengths.reserve(tensors.size());
  for (const SourceTensor& tensor : tensors) lengths.push_back(module_length(tensor.info->name));
  const auto module_of_tensor = [&](std::size_t i) {
    return std::string_view(tensors[i].info->name).substr(0, lengths[i]);
  };
  NameIndex modules;
  (void)modules.build(tensors.size(), module_of_tensor);
  // The tensors of a module are a list that begins with the first of them. They are not neighbours:
  // "M.b.weight" lies between "M.a" and "M.c".
  std::vector<std::uint32_t> next(tensors.size(), kEnd);
  std::vector<std::uint32_t> last(tensors.size(), kEnd);
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const auto first =
        static_cast<std::uint32_t>(modules.find(module_of_tensor(i), module_of_tensor).value_or(i));
    if (first != i) next[last[first]] = i;
    last[first] = i;
  }
  Module module(tensors);
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if (last[i] == kEnd) continue;  // not the first of its module
    module.clear();
    bool any = false;
    for (std::uint32_t each = i; each != kEnd; each = next[each]) {
      any |= has_codes(tensors[each]);
      module.add(leaf_of(tensors[each].info->name, lengths[each]), each);
    }
    if (any) module.look_at_codes(look);
  }
}

std::optional<PartsRefusal> refusal_by_parts(const ModuleCodes& module, Dtype dtype,
                                             bool is_claimed,
                                             std::span<const std::string_view> left) {
  const SchemeParts* nearest = nullptr;
  std::size_t fewest = module.besides.size();  // a scheme needs one part at least
  std::string_view strange = left.front();
  for (const SchemeParts& row : all_parts()) {
    if (row.role != module.role || (row.types & set_of(dtype)) == 0) continue;
    const auto is_strange = [&](std::string_view role) {
      return std::ranges::find(row.parts, role) == row.parts.end();
    };
    const auto count = static_cast<std::size_t>(std::ranges::count_if(
        module.besides, [&](const ModuleCodes::Beside& each) { return is_strange(each.role); }));
    if (count >= fewest) continue;
    nearest = &row;
    fewest = count;
    const auto found = std::ranges::find_if(left, is_strange);
    strange = found == left.end() ? std::string_view() : *found;
  }
  if (nearest == nullptr) {
    return PartsRefusal{std::string(safetensors::name(dtype)) + " codes with `" + clipped(strange) +
                        "` beside them: no scheme has these parts. get_tensor() reads them as "
                        "stored"};
  }
  if (is_claimed && strange.empty()) strange = left.front();
  const std::string scheme(nearest->scheme);
  if (strange.empty()) {
    if (nearest->types == codes::kU32) return std::nullopt;
    return PartsRefusal{"scheme \"" + scheme + "\" is not decoded", false};
  }
  return PartsRefusal{"it looks like " + scheme + ", but `" + clipped(strange) +
                      "` beside it is no part of that scheme. Decoding without it would give wrong "
                      "values. get_tensor() reads the parts as stored"};
}

}  // namespace safetensors::weights
