#include "weights/quant_params.hpp"

#include <algorithm>
#include <array>

#include "weights/names.hpp"

namespace safetensors::weights {
namespace {

struct Mode {
  std::string_view name;
  QuantParams defaults;  // its mode is this one
};
constexpr Mode kModes[] = {
    {"affine", {QuantMode::affine, 4, 64}},
    {"mxfp4", {QuantMode::mxfp4, 4, 32}},
    {"mxfp8", {QuantMode::mxfp8, 8, 32}},
    {"nvfp4", {QuantMode::nvfp4, 4, 16}},
};

const Mode& of(QuantMode mode) noexcept { return kModes[static_cast<std::size_t>(mode)]; }

/// "ffn.experts.3.down" as "ffn.experts.down".
std::string without_expert(std::string_view module) {
  constexpr std::string_view kExperts = "ffn.experts.";
  std::string text(module);
  if (!module.starts_with(kExperts)) return text;
  std::size_t end = kExperts.size();
  while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
  if (end > kExperts.size() && end < text.size())
    text.erase(kExperts.size(), end + 1 - kExperts.size());
  return text;
}

constexpr std::string_view kFromDim[] = {
    "token_embedding",
    "output",
    "attention.q",
    "attention.k",
    "attention.v",
    "attention.qkv",
    "ffn.gate",
    "ffn.up",
    "ffn.gate_up",
    "ffn.router",
    "ffn.experts.gate",
    "ffn.experts.up",
    "ffn.experts.gate_up",
    "ffn.shared_expert.gate",
    "ffn.shared_expert.up",
    "ffn.shared_expert_gate",
};

}  // namespace

QuantParams defaults_of(QuantMode mode) noexcept { return of(mode).defaults; }

std::optional<QuantMode> parse_quant_mode(std::string_view name) noexcept {
  const auto* found = std::ranges::find(kModes, name, &Mode::name);
  return found == std::end(kModes) ? std::nullopt : std::optional(found->defaults.mode);
}

std::string_view name(QuantMode mode) noexcept { return of(mode).name; }

std::string shown(const QuantParams& params) {
  return std::string(name(params.mode)) + ", " + std::to_string(params.bits) + " bits, groups of " +
         std::to_string(params.group_size);
}

std::optional<std::int64_t> expected_inner(std::string_view canonical, const ModelConfig& config) {
  const std::string module = without_expert(split_layer(split_param(canonical).module).module);
  if (std::ranges::find(kFromDim, module) != std::end(kFromDim)) return config.dim;
  if (module == "attention.output") {
    if (!config.n_heads || !config.head_dim) return std::nullopt;
    return *config.n_heads * *config.head_dim;  // below 2^62
  }
  if (module == "ffn.down") return config.ffn_dim;
  if (module == "ffn.experts.down") {
    return config.moe_ffn_dim != 0 ? config.moe_ffn_dim : config.ffn_dim;
  }
  return std::nullopt;
}

std::optional<QuantParams> params_of_shapes(std::int64_t inner, std::uint64_t words,
                                            std::uint64_t groups, Dtype scales) {
  const auto k = static_cast<std::uint64_t>(inner);
  // No product of a file's sizes: words * 32 might not fit.
  if (inner <= 0 || groups == 0 || k % groups != 0 || words > k || (words * 32) % k != 0) {
    return std::nullopt;
  }
  const std::uint64_t group = k / groups;
  const std::uint64_t bits = words * 32 / k;
  if (group > 128 || bits > 8) return std::nullopt;
  QuantParams params{QuantMode::affine, static_cast<int>(bits), static_cast<int>(group)};
  if (scales == Dtype::kU8) {
    if (bits == 4 && group == 16)
      params.mode = QuantMode::nvfp4;
    else if (bits == 4)
      params.mode = QuantMode::mxfp4;
    else
      params.mode = QuantMode::mxfp8;
  }
  return params;
}

}  // namespace safetensors::weights
