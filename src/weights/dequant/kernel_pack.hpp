// MLX's packs: groups of values that share a scale.
#pragma once

#include "weights/dequant/kernel_blocks.hpp"

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && __has_builtin(__builtin_convertvector)
#define SAFETENSORS_HAS_VECTORS 1
#endif
#endif

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Eight values of `bits` bits, the first from the low end: `bits` bytes.
template <int bits>
SAFETENSORS_INLINE U64 load_eight(const U8* from) noexcept {
  U64 value = 0;
  for (int i = 0; i < bits; ++i) value |= static_cast<U64>(from[i]) << (8 * i);
  return value;
}

/// 32 values, which fill `bits` words whatever their width.
template <int bits>
SAFETENSORS_INLINE void affine_by_eights(const U8* from, float s, float b,
                                         float* SAFETENSORS_RESTRICT y) noexcept {
  for (int part = 0; part < 4; ++part) {
    const U64 eight = load_eight<bits>(from + bits * part);
    for (int j = 0; j < 8; ++j) {
      const U64 q = (eight >> (bits * j)) & ((1U << bits) - 1);
      y[8 * part + j] = s * to_float(static_cast<int>(q)) + b;
    }
  }
}

#if defined(SAFETENSORS_HAS_VECTORS)

using Words = U32 __attribute__((vector_size(32)));
using Ints = std::int32_t __attribute__((vector_size(32)));
using Floats = float __attribute__((vector_size(32)));

/// Values first ... first + 7 of the 32 in `words`: the words they begin and end in side by side,
/// then each shifted to its place.
template <int bits, int first>
SAFETENSORS_INLINE void affine_eight(const Words& words, float s, float b, float* y) noexcept {
#define SAFETENSORS_BIT(j) ((first + (j)) * bits)
#define SAFETENSORS_WORD(j) (SAFETENSORS_BIT(j) / 32)
#define SAFETENSORS_NEXT(j) (SAFETENSORS_WORD(j) < 7 ? SAFETENSORS_WORD(j) + 1 : 7)
#define SAFETENSORS_EACH(f) f(0), f(1), f(2), f(3), f(4), f(5), f(6), f(7)
#define SAFETENSORS_DOWN(j) U32{SAFETENSORS_BIT(j) % 32}
#define SAFETENSORS_UP(j) U32{(32 - SAFETENSORS_BIT(j) % 32) % 32}
#define SAFETENSORS_CROSSES(j) (SAFETENSORS_BIT(j) % 32 + bits > 32 ? ~U32{0} : U32{0})
  Words q = __builtin_shufflevector(words, words, SAFETENSORS_EACH(SAFETENSORS_WORD)) >>
            Words{SAFETENSORS_EACH(SAFETENSORS_DOWN)};
  if constexpr (32 % bits != 0) {
    const Words next = __builtin_shufflevector(words, words, SAFETENSORS_EACH(SAFETENSORS_NEXT));
    q |= (next << Words{SAFETENSORS_EACH(SAFETENSORS_UP)}) &
         Words{SAFETENSORS_EACH(SAFETENSORS_CROSSES)};
  }
#undef SAFETENSORS_BIT
#undef SAFETENSORS_WORD
#undef SAFETENSORS_NEXT
#undef SAFETENSORS_EACH
#undef SAFETENSORS_DOWN
#undef SAFETENSORS_UP
#undef SAFETENSORS_CROSSES
  q &= (1U << bits) - 1;
  const Floats values = __builtin_convertvector(reinterpret_cast<Ints>(q), Floats) * s + b;
  std::memcpy(y, &values, sizeof values);
}

/// Reads 32 bytes, however few of them count: a load of fewer takes a detour through memory.
template <int bits>
SAFETENSORS_INLINE void affine_32(const U8* from, float s, float b, float* y) noexcept {
  Words words;
  std::memcpy(&words, from, sizeof words);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  words = (words >> 24) | ((words >> 8) & 0xFF00U) | ((words << 8) & 0xFF0000U) | (words << 24);
#endif
  affine_eight<bits, 0>(words, s, b, y);
  affine_eight<bits, 8>(words, s, b, y + 8);
  affine_eight<bits, 16>(words, s, b, y + 16);
  affine_eight<bits, 24>(words, s, b, y + 24);
}

#endif

template <int bits>
void affine(const U8* SAFETENSORS_RESTRICT codes, const U8* end, std::size_t groups,
            std::size_t group_size, const float* scales, const float* biases,
            float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t g = 0; g < groups; ++g) {
    const float s = scales[g];
    const float b = biases[g];
    for (std::size_t i = 0; i < group_size; i += 32, codes += 4 * bits, y += 32) {
#if defined(SAFETENSORS_HAS_VECTORS)
      if (end - codes >= 32) {
        affine_32<bits>(codes, s, b, y);
        continue;
      }
#endif
      affine_by_eights<bits>(codes, s, b, y);
    }
  }
}

/// Codes of groups of 16 or 32 values, the first of a byte in its low half.
inline void fp4(const U8* SAFETENSORS_RESTRICT codes, const U8* end, std::size_t groups,
                std::size_t group_size, const float* scales, const float* /*biases*/,
                float* SAFETENSORS_RESTRICT y) noexcept {
  const std::size_t nbytes = groups * group_size / 2;
  (void)end;
  std::size_t done = 0;
  for (; done + 16 <= nbytes; done += 16, y += 32) {
    I8 halves[32];
    I8 q[32];
    look_up(codes + done, kTwiceE2M1, halves);
    for (int j = 0; j < 16; ++j) {
      q[2 * j] = halves[j];
      q[2 * j + 1] = halves[j + 16];
    }
    const float first = scales[done * 2 / group_size];
    const float second = scales[(done * 2 + 16) / group_size];
    for (int j = 0; j < 16; ++j) y[j] = to_float(q[j]) * 0.5F * first;
    for (int j = 16; j < 32; ++j) y[j] = to_float(q[j]) * 0.5F * second;
  }
  for (; done < nbytes; ++done, y += 2) {
    const float s = scales[done * 2 / group_size];
    y[0] = to_float(kTwiceE2M1.values[codes[done] & 15]) * 0.5F * s;
    y[1] = to_float(kTwiceE2M1.values[codes[done] >> 4]) * 0.5F * s;
  }
}

inline void fp8(const U8* SAFETENSORS_RESTRICT codes, const U8* /*end*/, std::size_t groups,
                std::size_t group_size, const float* scales, const float* /*biases*/,
                float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t g = 0; g < groups; ++g, codes += group_size, y += group_size) {
    for (std::size_t i = 0; i < group_size; ++i) y[i] = kE4M3Values.values[codes[i]] * scales[g];
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT
