// The table of all schemes.
#include "weights/schemes/claims.hpp"
#include "weights/schemes/scheme.hpp"

namespace safetensors::weights {
namespace {

// Rows of one ending are tried in order. The scales of a weight are looked at instead of the weight
// where possible, so that plain weights need no search.
constexpr Scheme kSchemes[] = {
    {".quant_state.bitsandbytes__nf4", &claim_bnb_4bit},
    {".quant_state.bitsandbytes__fp4", &claim_bnb_4bit},
    {".SCB", &claim_bnb_int8},
    {"_qdata", &claim_torchao},
    {":qdata", &claim_torchao},
    {".qweight", &claim_awq_gptq},
    {"_blocks", &claim_mxfp4},
    {"_scale_inv", &claim_fp8},
    {"_scale", &claim_fp8},
    {".scale", &claim_fp8},
    {".qscale_weight", &claim_fp8},
    {".weight_packed", &claim_ct_int},
    {".weight_packed", &claim_fp4_packed},
    {".weight_scale_2", &claim_fp4_modelopt},
    {".weight_scale", &claim_fp4_mx},
    {".scale", &claim_fp4_mx},
    {".weight_scale", &claim_int8},
    {".bitmask", &refuse_ct_bitmask},
    {".meta", &refuse_ct_marlin},
};

}  // namespace

std::span<const Scheme> all_schemes() noexcept { return kSchemes; }

}  // namespace safetensors::weights
