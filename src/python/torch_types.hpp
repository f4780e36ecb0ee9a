// The types of a file in torch's words and in DLPack's.
#pragma once

#include <optional>

#include "dlpack.hpp"
#include "safetensors/dtype.hpp"

namespace safetensors::python {

struct TorchType {
  const char* name;  ///< attribute of the module `torch`; nullptr when torch has no such type
  dlpack::DataType dlpack;
};

[[nodiscard]] constexpr TorchType torch_type(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kU64:
      return {"uint64", {dlpack::kUInt, 64, 1}};
    case Dtype::kI64:
      return {"int64", {dlpack::kInt, 64, 1}};
    case Dtype::kF64:
      return {"float64", {dlpack::kFloat, 64, 1}};
    case Dtype::kC64:
      return {"complex64", {dlpack::kComplex, 64, 1}};
    case Dtype::kF32:
      return {"float32", {dlpack::kFloat, 32, 1}};
    case Dtype::kU32:
      return {"uint32", {dlpack::kUInt, 32, 1}};
    case Dtype::kI32:
      return {"int32", {dlpack::kInt, 32, 1}};
    case Dtype::kBF16:
      return {"bfloat16", {dlpack::kBfloat, 16, 1}};
    case Dtype::kF16:
      return {"float16", {dlpack::kFloat, 16, 1}};
    case Dtype::kU16:
      return {"uint16", {dlpack::kUInt, 16, 1}};
    case Dtype::kI16:
      return {"int16", {dlpack::kInt, 16, 1}};
    case Dtype::kF8E5M2FNUZ:
      return {"float8_e5m2fnuz", {dlpack::kFloat8E5M2FNUZ, 8, 1}};
    case Dtype::kF8E4M3FNUZ:
      return {"float8_e4m3fnuz", {dlpack::kFloat8E4M3FNUZ, 8, 1}};
    case Dtype::kF8E8M0:
      return {"float8_e8m0fnu", {dlpack::kFloat8E8M0FNU, 8, 1}};
    case Dtype::kF8E4M3:
      return {"float8_e4m3fn", {dlpack::kFloat8E4M3FN, 8, 1}};
    case Dtype::kF8E5M2:
      return {"float8_e5m2", {dlpack::kFloat8E5M2, 8, 1}};
    case Dtype::kI8:
      return {"int8", {dlpack::kInt, 8, 1}};
    case Dtype::kU8:
      return {"uint8", {dlpack::kUInt, 8, 1}};
    case Dtype::kF4:
      return {"float4_e2m1fn_x2", {dlpack::kFloat4E2M1FN, 4, 2}};
    case Dtype::kBool:
      return {"bool", {dlpack::kBool, 8, 1}};
    default:
      return {nullptr, {}};
  }
}

[[nodiscard]] inline std::optional<Dtype> dtype_of_dlpack(dlpack::DataType type) noexcept {
  for (const Dtype dtype : all_dtypes()) {
    const TorchType row = torch_type(dtype);
    if (row.name != nullptr && row.dlpack.code == type.code && row.dlpack.bits == type.bits &&
        row.dlpack.lanes == type.lanes) {
      return dtype;
    }
  }
  return std::nullopt;
}

}  // namespace safetensors::python
