#include "model/effective_type.hpp"

namespace safetensors::weights {

EffectiveType effective_type(Dtype dtype) noexcept {
  const auto with = [&](std::uint32_t number) { return EffectiveType{number, name(dtype)}; };
  switch (dtype) {
    case Dtype::kF64:
      return with(code::kF64);
    case Dtype::kF32:
      return with(code::kF32);
    case Dtype::kF16:
      return with(code::kF16);
    case Dtype::kBF16:
      return with(code::kBF16);
    case Dtype::kI64:
      return with(code::kI64);
    case Dtype::kI32:
      return with(code::kI32);
    case Dtype::kI16:
      return with(code::kI16);
    case Dtype::kI8:
      return with(code::kI8);
    case Dtype::kU64:
      return with(code::kU64);
    case Dtype::kU32:
      return with(code::kU32);
    case Dtype::kU16:
      return with(code::kU16);
    case Dtype::kU8:
      return with(code::kU8);
    case Dtype::kBool:
      return with(code::kBool);
    case Dtype::kC64:
      return with(code::kC64);
    case Dtype::kF8E4M3:
      return with(code::kF8E4M3);
    case Dtype::kF8E5M2:
      return with(code::kF8E5M2);
    case Dtype::kF8E8M0:
      return with(code::kF8E8M0);
    case Dtype::kF8E4M3FNUZ:
      return with(code::kF8E4M3FNUZ);
    case Dtype::kF8E5M2FNUZ:
      return with(code::kF8E5M2FNUZ);
    case Dtype::kF4:
      return with(code::kF4);
    case Dtype::kF6E2M3:
      return with(code::kF6E2M3);
    case Dtype::kF6E3M2:
      return with(code::kF6E3M2);
  }
  return with(code::kU8);
}

EffectiveType effective_type(const QuantParams& quant) noexcept {
  switch (quant.mode) {
    case QuantMode::mxfp4:
      return {code::kMlxMxfp4, "mlx_mxfp4"};
    case QuantMode::mxfp8:
      return {code::kMlxMxfp8, "mlx_mxfp8"};
    case QuantMode::nvfp4:
      return {code::kMlxNvfp4, "mlx_nvfp4"};
    case QuantMode::affine:
      break;
  }
  switch (quant.bits) {
    case 1:
      return {code::kMlxQ1, "mlx_q1"};
    case 2:
      return {code::kMlxQ2, "mlx_q2"};
    case 3:
      return {code::kMlxQ3, "mlx_q3"};
    case 5:
      return {code::kMlxQ5, "mlx_q5"};
    case 6:
      return {code::kMlxQ6, "mlx_q6"};
    case 8:
      return {code::kMlxQ8, "mlx_q8"};
    default:
      return {code::kMlxQ4, "mlx_q4"};
  }
}

}  // namespace safetensors::weights
