#include "safetensors/from_float.hpp"

#include <cstring>
#include <string>

#include "base/little_endian.hpp"
#include "base/text.hpp"
#include "format/dtype_text.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

template <typename Bits, Bits (*kConvert)(float)>
void to_bits(std::span<const float> values, std::byte* to) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_little(to + sizeof(Bits) * i, kConvert(values[i]));
  }
}

void to_f32(std::span<const float> values, std::byte* to) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) store_little(to + sizeof(float) * i, values[i]);
  }
}

using Narrower = void (*)(std::span<const float> values, std::byte* to) noexcept;

/// Returns the converter to a dtype; nullptr if there is none.
Narrower narrower_to(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kF32:
      return to_f32;
    case Dtype::kBF16:
      return to_bits<std::uint16_t, float_to_bf16>;
    case Dtype::kF16:
      return to_bits<std::uint16_t, float_to_f16>;
    case Dtype::kF8E5M2:
      return to_bits<std::uint8_t, float_to_f8_e5m2>;
    case Dtype::kF8E4M3:
      return to_bits<std::uint8_t, float_to_f8_e4m3>;
    case Dtype::kU64:
    case Dtype::kI64:
    case Dtype::kF64:
    case Dtype::kC64:
    case Dtype::kU32:
    case Dtype::kI32:
    case Dtype::kU16:
    case Dtype::kI16:
    case Dtype::kF8E5M2FNUZ:
    case Dtype::kF8E4M3FNUZ:
    case Dtype::kF8E8M0:
    case Dtype::kI8:
    case Dtype::kU8:
    case Dtype::kF6E3M2:
    case Dtype::kF6E2M3:
    case Dtype::kF4:
    case Dtype::kBool:
      break;
  }
  return nullptr;
}

}  // namespace

void from_float(Dtype dtype, std::span<const float> values, std::span<std::byte> to) {
  const Narrower convert = narrower_to(dtype);
  if (convert == nullptr) {
    fail(ErrorCode::kUnsupportedDtype,
         "from_float does not convert to elements of dtype " + dtype_text(dtype));
  }
  const std::uint64_t nbytes = std::uint64_t{values.size()} * bit_size(dtype) / 8;
  if (nbytes != to.size()) {
    fail(ErrorCode::kInvalidArgument,
         counted(values.size(), "element") + " of " + std::string(name(dtype)) + " take " +
             counted(nbytes, "byte") + ", the destination has " + grouped(to.size()));
  }
  convert(values, to.data());
}

}  // namespace safetensors
