// The storage types of GGUF files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

/// One row for each type: ROW(number in files, name, values of a block, bytes of a block, kernel).
///
/// Everything else about types is made from this table. A kernel is a function of kernel_*.hpp that
/// decodes one block, or all values of a plain type. ggml uses Q8_1 and Q8_K during computations
/// only and never stores them, so they have no kernel. To add a type, add a row, the layout of its
/// block to ggml_blocks.hpp and the kernel: without them, and with other numbers of bytes,
/// kernels_all.hpp does not compile.
#define SAFETENSORS_GGML_TYPES(ROW)  \
  ROW(0, F32, 1, 4, f32)             \
  ROW(1, F16, 1, 2, f16)             \
  ROW(2, Q4_0, 32, 18, q4_0)         \
  ROW(3, Q4_1, 32, 20, q4_1)         \
  ROW(6, Q5_0, 32, 22, q5_0)         \
  ROW(7, Q5_1, 32, 24, q5_1)         \
  ROW(8, Q8_0, 32, 34, q8_0)         \
  ROW(9, Q8_1, 32, 36, nullptr)      \
  ROW(10, Q2_K, 256, 84, q2_k)       \
  ROW(11, Q3_K, 256, 110, q3_k)      \
  ROW(12, Q4_K, 256, 144, q4_k)      \
  ROW(13, Q5_K, 256, 176, q5_k)      \
  ROW(14, Q6_K, 256, 210, q6_k)      \
  ROW(15, Q8_K, 256, 292, nullptr)   \
  ROW(16, IQ2_XXS, 256, 66, iq2_xxs) \
  ROW(17, IQ2_XS, 256, 74, iq2_xs)   \
  ROW(18, IQ3_XXS, 256, 98, iq3_xxs) \
  ROW(19, IQ1_S, 256, 50, iq1_s)     \
  ROW(20, IQ4_NL, 32, 18, iq4_nl)    \
  ROW(21, IQ3_S, 256, 110, iq3_s)    \
  ROW(22, IQ2_S, 256, 82, iq2_s)     \
  ROW(23, IQ4_XS, 256, 136, iq4_xs)  \
  ROW(24, I8, 1, 1, i8)              \
  ROW(25, I16, 1, 2, i16)            \
  ROW(26, I32, 1, 4, i32)            \
  ROW(27, I64, 1, 8, i64)            \
  ROW(28, F64, 1, 8, f64)            \
  ROW(29, IQ1_M, 256, 56, iq1_m)     \
  ROW(30, BF16, 1, 2, bf16)          \
  ROW(34, TQ1_0, 256, 54, tq1_0)     \
  ROW(35, TQ2_0, 256, 66, tq2_0)     \
  ROW(39, MXFP4, 32, 17, mxfp4)      \
  ROW(40, NVFP4, 64, 36, nvfp4)      \
  ROW(41, Q1_0, 128, 18, q1_0)       \
  ROW(42, Q2_0, 64, 18, q2_0)

namespace safetensors::weights {

struct GgmlType {
  std::uint32_t id;
  std::string_view name;         ///< as ggml spells it: "Q4_K"
  std::uint32_t block_elements;  ///< values that are stored together; 1 for plain types
  std::uint32_t block_bytes;
};

/// Returns the type with that number, or nullptr if there is none: the size of its data is then
/// unknown. Includes types that are never stored in files.
[[nodiscard]] const GgmlType* find_ggml_type(std::uint32_t id) noexcept;

/// Returns the name of a type that GGUF once had and withdrew; empty for any other number.
[[nodiscard]] std::string_view withdrawn_ggml_type(std::uint32_t id) noexcept;

/// Returns the name that bitnet.cpp gives to a withdrawn number: its files have types of their own.
/// Empty for any other number.
[[nodiscard]] std::string_view bitnet_type(std::uint32_t id) noexcept;

/// Returns whether the type has a kernel, so that dequantize_blocks() decodes it.
[[nodiscard]] bool can_dequantize(std::uint32_t id) noexcept;

namespace ggml {

// The numbers of types, as files store them: kF32, kQ4_K, ...
#define SAFETENSORS_ROW(id, name, elements, nbytes, kernel) \
  inline constexpr std::uint32_t k##name = id;
SAFETENSORS_GGML_TYPES(SAFETENSORS_ROW)
#undef SAFETENSORS_ROW

/// All numbers of types are below it.
inline constexpr std::size_t kEnd = kQ2_0 + 1;

}  // namespace ggml

}  // namespace safetensors::weights
