// The table of all schemes.
#include "schemes/claims.hpp"
#include "schemes/parts.hpp"
#include "schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

// For each tensor, all rows whose ending its name has are tried in order, until one claims it:
// "_scale" comes before ".weight_scale", which ends with it. The scales of a weight are looked at
// instead of the weight where possible, so that plain weights need no search.
constexpr Scheme kSchemes[] = {
    {".quant_state.bitsandbytes__nf4", &claim_bnb_4bit},
    {".quant_state.bitsandbytes__fp4", &claim_bnb_4bit},
    {".SCB", &claim_bnb_int8},
    {"_qdata", &claim_torchao},
    {":qdata", &claim_torchao},
    {".qweight", &claim_awq_gptq},
    {"_blocks", &claim_mxfp4},
    {".blocks", &claim_mxfp4},
    {"_scale_inv", &claim_fp8},
    {"_scale", &claim_fp8},
    {".scale", &claim_fp8},
    {".qscale_weight", &claim_fp8},
    {".scale_weight", &claim_fp8},
    {".weight._data", &claim_quanto},
    {".weight._data._data", &claim_quanto_packed},
    {".weight_packed", &claim_ct_int},
    {".weight_packed", &claim_mxfp6},
    {".weight_packed", &claim_fp4_packed},
    {".weight_scale_2", &claim_fp4_modelopt},
    {".weight_scale", &claim_fp4_mx},
    {".scale", &claim_fp4_mx},
    {".weight_scale", &claim_int8},
    {".weight_scale", &claim_int4},
    {".bitmask", &refuse_ct_bitmask},
    {".meta", &refuse_ct_marlin},
};

// The parts of each scheme, by which a module is named whose parts are not all claimed.
constexpr SchemeParts kParts[] = {
    {"fp8 or mxfp8",
     "weight",
     codes::kF8,
     {"weight_scale", "weight_scale_inv", "scale", "qscale_weight", "scale_weight",
      "scale_weight_tensor", "pre_quant_scale", "weight_zero_point"}},
    {"fp8 or mxfp8", "", codes::kF8, {"scale", "scale_inv"}},
    {"int8", "weight", codes::kI8, {"weight_scale", "weight_zero_point", "pre_quant_scale"}},
    {"bitsandbytes", "weight", codes::kI8, {"SCB", "weight_format"}},
    {"bitsandbytes",
     "weight",
     codes::kBytes,
     {"weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
      "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"}},
    {"mxfp4", "weight", codes::kBytes, {"weight_scale", "scale"}},
    {"mxfp4", "blocks", codes::kBytes, {"scales"}},
    {"nvfp4 or int4",
     "weight",
     codes::kBytes,
     {"weight_scale", "weight_scale_2", "pre_quant_scale"}},
    {"compressed-tensors",
     "weight_packed",
     codes::kI32 | codes::kBytes,
     {"weight_scale", "weight_global_scale", "weight_zero_point", "weight_g_idx", "weight_shape"}},
    {"gptq or awq", "qweight", codes::kI32, {"scales", "qzeros", "g_idx"}},
    {"torchao",
     "qdata",
     codes::kF8 | codes::kBytes,
     {"scale", "zero_point", "per_tensor_scale", "act_per_tensor_scale", "act_quant_scale",
      "act_quant_zero_point", "act_pre_scale"}},
    {"quanto", "weight._data", codes::kF8 | codes::kI8, {"weight._scale"}},
    {"quanto", "weight._data._data", codes::kBytes, {"weight._scale", "weight._shift"}},
    {"comfy",
     "weight",
     codes::kF8 | codes::kBytes,
     {"weight_scale", "weight_scale_2", "pre_quant_scale", "weight_s_rel", "weight_s_channel",
      "weight_codebook", "weight_zeros", "comfy_quant"}},
    {"an MLX pack", "weight", codes::kU32, {"scales", "biases", "global_scale"}},
};

}  // namespace

std::span<const Scheme> all_schemes() noexcept { return kSchemes; }
std::span<const SchemeParts> all_parts() noexcept { return kParts; }

}  // namespace safetensors::weights
