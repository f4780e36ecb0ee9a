// Converts plain values of safetensors' dtypes.
#include <atomic>
#include <bit>
#include <string>

#include "common/fail.hpp"
#include "dequant/chunks.hpp"
#include "dequant/code_tables.hpp"
#include "dequant/dequant.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

using Bytes = const std::uint8_t*;

template <std::size_t nbytes>
std::uint64_t load_unsigned(Bytes from) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < nbytes; ++i) value |= std::uint64_t{from[i]} << (8 * i);
  return value;
}

template <std::size_t nbytes>
void unsigned_values(Bytes from, std::size_t count, float* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = static_cast<float>(load_unsigned<nbytes>(from + i * nbytes));
  }
}

template <const CodeTable* table>
void coded_values(Bytes from, std::size_t count, float* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) to[i] = table->values[from[i]];
}

void bool_values(Bytes from, std::size_t count, float* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i] != 0 ? 1.0F : 0.0F;
}

/// Keeps the sign of a negative zero, which the table of integers does not have.
float f4_value(unsigned code) noexcept {
  const float value = static_cast<float>(kTwiceE2M1.values[code & 7U]) * 0.5F;
  return (code & 8U) != 0 ? -value : value;
}

/// Decodes whole bytes: two values each, the first in the low nibble.
void f4_pairs(Bytes from, std::size_t pairs, float* to) noexcept {
  for (std::size_t i = 0; i < pairs; ++i) {
    to[2 * i] = f4_value(from[i] & 15U);
    to[2 * i + 1] = f4_value(from[i] >> 4);
  }
}

/// Returns the decoder of a type, or nullptr.
Kernels::Blocks decoder_of(Dtype dtype, const Kernels& kernels) noexcept {
  switch (dtype) {
    case Dtype::kF64:
      return kernels.blocks[ggml::kF64];
    case Dtype::kF32:
      return kernels.blocks[ggml::kF32];
    case Dtype::kF16:
      return kernels.blocks[ggml::kF16];
    case Dtype::kBF16:
      return kernels.blocks[ggml::kBF16];
    case Dtype::kI64:
      return kernels.blocks[ggml::kI64];
    case Dtype::kI32:
      return kernels.blocks[ggml::kI32];
    case Dtype::kI16:
      return kernels.blocks[ggml::kI16];
    case Dtype::kI8:
      return kernels.blocks[ggml::kI8];
    case Dtype::kU64:
      return unsigned_values<8>;
    case Dtype::kU32:
      return unsigned_values<4>;
    case Dtype::kU16:
      return unsigned_values<2>;
    case Dtype::kU8:
      return unsigned_values<1>;
    case Dtype::kBool:
      return bool_values;
    case Dtype::kF8E4M3:
      return coded_values<&kE4M3Values>;
    case Dtype::kF8E5M2:
      return coded_values<&kE5M2Values>;
    case Dtype::kF8E8M0:
      return coded_values<&kE8M0Values>;
    case Dtype::kF8E4M3FNUZ:
      return coded_values<&kE4M3FnuzValues>;
    case Dtype::kF8E5M2FNUZ:
      return coded_values<&kE5M2FnuzValues>;
    case Dtype::kF4:
      return f4_pairs;
    case Dtype::kC64:
    case Dtype::kF6E2M3:
    case Dtype::kF6E3M2:
      break;
  }
  return nullptr;
}

Kernels::Blocks need_decoder_of(Dtype dtype, const Kernels& kernels) {
  const Kernels::Blocks decode = decoder_of(dtype, kernels);
  if (decode == nullptr) {
    fail(Errc::unsupported, {}, {},
         "values of type " + std::string(name(dtype)) + " cannot be converted");
  }
  return decode;
}

bool is_same(Dtype dtype, Output output) noexcept {
  switch (output) {
    case Output::f32:
      return dtype == Dtype::kF32;
    case Output::f16:
      return dtype == Dtype::kF16;
    case Output::bf16:
      return dtype == Dtype::kBF16;
  }
  return false;
}

}  // namespace

bool can_convert(Dtype dtype) noexcept { return decoder_of(dtype, kBaselineKernels) != nullptr; }

void convert_values(Dtype dtype, const std::byte* from, std::uint64_t count, Output output,
                    std::byte* to, const Interrupt& interrupt, const Kernels& kernels) {
  const Kernels::Blocks decode = need_decoder_of(dtype, kernels);
  if (count == 0) return;
  if (is_same(dtype, output) && std::endian::native == std::endian::little) {
    const CopyPiece all{to, from, static_cast<std::size_t>(count) * size_of(output)};
    copy_all({&all, 1}, interrupt);
    return;
  }
  const auto bytes = reinterpret_cast<Bytes>(from);
  const bool pairs = dtype == Dtype::kF4;
  const std::size_t unit_values = pairs ? 2 : 1;
  const std::size_t unit_bytes = pairs ? 1 : bit_size(dtype) / 8;
  const std::uint64_t units = count / unit_values;
  decode_all(kernels, units, unit_values, output, to, interrupt,
             [&](std::uint64_t begin, std::size_t some, float* values) {
               decode(bytes + begin * unit_bytes, some, values);
             });
  if (units * unit_values == count) return;
  // An odd count of F4: the last value is half of a byte.
  Sink(kernels, output, to).put(count - 1, 1, 1, [&](std::uint64_t, std::size_t, float* value) {
    *value = f4_value(bytes[units] & 15U);
  });
}

std::uint64_t to_f16_values(Dtype dtype, const std::byte* from, std::uint64_t count, std::byte* to,
                            const Interrupt& interrupt, const Kernels& kernels) {
  const Kernels::Blocks decode = need_decoder_of(dtype, kernels);
  if (dtype == Dtype::kF4) {  // at most 6: no value overflows
    convert_values(dtype, from, count, Output::f16, to, interrupt, kernels);
    return 0;
  }
  const auto bytes = reinterpret_cast<Bytes>(from);
  const std::size_t unit_bytes = bit_size(dtype) / 8;
  std::atomic<std::uint64_t> overflows{0};
  decode_all(kernels, count, 1, Output::f16, to, interrupt,
             [&](std::uint64_t begin, std::size_t some, float* values) {
               decode(bytes + begin * unit_bytes, some, values);
               const std::size_t found = kernels.count_f16_overflow(values, some);
               if (found != 0) overflows.fetch_add(found, std::memory_order_relaxed);
             });
  return overflows.load();
}

}  // namespace safetensors::weights
