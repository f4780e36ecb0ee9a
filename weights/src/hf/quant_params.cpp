#include "hf/quant_params.hpp"

#include <algorithm>
#include <utility>

#include "base/checked.hpp"

namespace safetensors::weights {
namespace {

// In the order of QuantMode. Defaults of MLX's quantize().
constexpr QuantParams kDefaults[] = {{QuantMode::affine, 4, 64},
                                     {QuantMode::mxfp4, 4, 32},
                                     {QuantMode::mxfp8, 8, 32},
                                     {QuantMode::nvfp4, 4, 16}};

/// Returns the length of a row with these parameters. No overflow: candidates_of() checked it.
std::uint64_t row_of(const QuantParams& params, std::uint64_t groups) noexcept {
  return groups * static_cast<std::uint64_t>(params.group_size);
}

const QuantParams* with_row(std::span<const QuantParams> candidates, std::uint64_t groups,
                            const std::optional<std::uint64_t>& row) noexcept {
  const auto fits = [&](const QuantParams& params) { return row_of(params, groups) == row; };
  const auto found = std::ranges::find_if(candidates, fits);
  return found == candidates.end() ? nullptr : &*found;
}

const QuantParams* equal_to(std::span<const QuantParams> candidates,
                            const std::optional<QuantParams>& params) noexcept {
  const auto found = std::ranges::find(candidates, params);
  return found == candidates.end() ? nullptr : &*found;
}

std::string listed(std::span<const QuantParams> candidates) {
  std::string text;
  for (const QuantParams& params : candidates) {
    if (!text.empty()) text += " or ";
    text += shown(params);
  }
  return text;
}

}  // namespace

QuantParams defaults_of(QuantMode mode) noexcept {
  return kDefaults[static_cast<std::size_t>(mode)];
}

std::string shown(const QuantParams& params) {
  return std::string(name(params.mode)) + ", " + std::to_string(params.bits) + " bits, groups of " +
         std::to_string(params.group_size);
}

std::vector<QuantParams> candidates_of(std::uint64_t words, std::uint64_t groups, Dtype scales) {
  const auto row_bits = checked_multiply(words, 32);
  if (!row_bits || groups == 0 || *row_bits % groups != 0) return {};
  const std::uint64_t product = *row_bits / groups;  // bits * group
  std::vector<QuantParams> found;
  const auto add = [&](const QuantParams& params) {
    const auto group = static_cast<std::uint64_t>(params.group_size);
    if (static_cast<std::uint64_t>(params.bits) * group != product) return;
    if (checked_multiply(groups, group)) found.push_back(params);
  };
  if (scales == Dtype::kU8) {
    for (const QuantParams& each : kDefaults) {
      if (each.mode != QuantMode::affine) add(each);
    }
    return found;
  }
  for (const int group : {128, 64, 32}) {
    for (const int bits : {1, 2, 3, 4, 5, 6, 8}) add({QuantMode::affine, bits, group});
  }
  return found;
}

QuantChoice choose_quant(std::span<const QuantParams> candidates, std::uint64_t groups,
                         const RowEvidence& evidence, const std::optional<QuantParams>& model,
                         const std::optional<QuantParams>& given) {
  if (candidates.empty()) return {{}, "words and scales fit no kind of pack"};
  const std::string says = model ? "; the configuration says " + shown(*model) : std::string();
  if (candidates.size() == 1) {
    const QuantParams& only = candidates.front();
    if (!model || only == *model) return {only, {}};
    return {only, "the shapes allow only " + shown(only) + says};
  }
  if (const QuantParams* known = with_row(candidates, groups, evidence.known)) {
    if (!model || *known == *model) return {*known, {}};
    return {*known, "the row length, which other tensors of the file fix, makes it " +
                        shown(*known) + says};
  }
  constexpr std::string_view kTensors = "other tensors of the file";
  constexpr std::string_view kSizes = "the sizes in the configuration";
  if (const QuantParams* same = equal_to(candidates, model)) {
    const auto& tensors = evidence.known ? evidence.known : evidence.likely;
    const auto& row = tensors ? tensors : evidence.config;
    if (!row || row_of(*same, groups) == *row) return {*same, {}};
    return {*same, "it is read as " + shown(*same) + ", as the configuration says, though " +
                       std::string(tensors ? kTensors : kSizes) + " suggest another row length"};
  }
  for (const auto& [row, source] :
       {std::pair(evidence.likely, kTensors), std::pair(evidence.config, kSizes)}) {
    const QuantParams* likely = with_row(candidates, groups, row);
    if (likely != nullptr) {
      return {*likely,
              std::string(source) + " make it " + shown(*likely) + says + ", which does not fit"};
    }
  }
  if (const QuantParams* same = equal_to(candidates, given)) return {*same, {}};
  return {{},
          "it can be " + listed(candidates) +
              ", and nothing distinguishes them: state it in the options (quant) or by an entry of "
              "its own "
              "in the configuration" +
              says};
}

}  // namespace safetensors::weights
