// Weights stored by columns (AWQ, GPTQ), and codes of four bits with a table of floats
// (bitsandbytes).
#pragma once

#include "dequant/kernel_lanes.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

/// Transposes a matrix of 32-bit words. The rows in memory are `stride` bytes apart.
inline void transpose_words(const U8* SAFETENSORS_RESTRICT from, std::size_t stride,
                            std::size_t rows, std::size_t columns,
                            U8* SAFETENSORS_RESTRICT to) noexcept {
  const std::size_t row_nbytes = 4 * rows;  // of the result
  std::size_t row = 0;
  for (; row + 4 <= rows; row += 4, from += 4 * stride) {
    std::size_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      const U8* at = from + 4 * column;
      const BytePair x = interleave<4>(load_bytes(at), load_bytes(at + stride));
      const BytePair y = interleave<4>(load_bytes(at + 2 * stride), load_bytes(at + 3 * stride));
      const BytePair low = interleave<8>(x.first, y.first);
      const BytePair high = interleave<8>(x.second, y.second);
      U8* put = to + column * row_nbytes + 4 * row;
      store(low.first, put);
      store(low.second, put + row_nbytes);
      store(high.first, put + 2 * row_nbytes);
      store(high.second, put + 3 * row_nbytes);
    }
    for (; column < columns; ++column) {
      for (std::size_t i = 0; i < 4; ++i) {
        std::memcpy(to + column * row_nbytes + 4 * (row + i), from + i * stride + 4 * column, 4);
      }
    }
  }
  for (; row < rows; ++row, from += stride) {
    for (std::size_t column = 0; column < columns; ++column) {
      std::memcpy(to + column * row_nbytes + 4 * row, from + 4 * column, 4);
    }
  }
}

/// Decodes the code of four bits that starts at bit `shift` of each word.
inline void nibble_of_words(const U8* SAFETENSORS_RESTRICT words, unsigned shift,
                            std::size_t groups, std::size_t group_size,
                            const float* SAFETENSORS_RESTRICT scales,
                            const float* SAFETENSORS_RESTRICT zeros,
                            float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t g = 0; g < groups; ++g, words += 4 * group_size, y += group_size) {
    const float s = scales[g];
    const float z = zeros[g];
    for (std::size_t i = 0; i < group_size; ++i) {
      y[i] = (to_float(static_cast<int>((load<U32>(words + 4 * i) >> shift) & 15U)) - z) * s;
    }
  }
}

/// Decodes the signed code of four bits that starts at bit `shift`, 0 or 4, of each byte.
inline void nibble_of_bytes(const U8* SAFETENSORS_RESTRICT codes, unsigned shift,
                            std::size_t groups, std::size_t group_size,
                            const float* SAFETENSORS_RESTRICT scales,
                            float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t g = 0; g < groups; ++g, codes += group_size, y += group_size) {
    const float s = scales[g];
    std::size_t i = 0;
    for (; i + 16 <= group_size; i += 16) {
      const BytePair halves = nibbles(load_bytes(codes + i));
      const Bytes q = ((shift == 0 ? halves.first : halves.second) ^ all(8)) - all(8);
      store(signed_floats(q) * s, y + i);
    }
    for (; i < group_size; ++i) y[i] = to_float(((codes[i] >> shift & 15) ^ 8) - 8) * s;
  }
}

/// Applies to each code the zero and the scale of its own group.
inline void scale_by_group(const U32* SAFETENSORS_RESTRICT group_of, std::size_t count,
                           const float* SAFETENSORS_RESTRICT scales,
                           const float* SAFETENSORS_RESTRICT zeros,
                           float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const U32 g = group_of[i];
    y[i] = (y[i] - zeros[g]) * scales[g];
  }
}

/// Decodes blocks of codes of four bits. The first code of a byte is in its high nibble.
///
/// Requires: `table` has 16 values; `block_size` is a multiple of 32.
inline void table4(const U8* SAFETENSORS_RESTRICT codes, std::size_t blocks, std::size_t block_size,
                   const float* SAFETENSORS_RESTRICT table,
                   const float* SAFETENSORS_RESTRICT scales,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t b = 0; b < blocks; ++b) {
    // Sixteen products are fewer than those of a block.
    alignas(64) float scaled[16];
    for (Index i = 0; i < 16; ++i) scaled[i] = table[i] * scales[b];
#if defined(__AVX2__)
    const __m256 low = _mm256_load_ps(scaled);
    const __m256 high = _mm256_load_ps(scaled + 8);
    // Permutations use the three lowest bits of a code; the fourth, as a sign, selects the half.
    const auto look_up_8 = [&](__m128i eight) SAFETENSORS_INLINE_LAMBDA {
      const __m256i q = _mm256_cvtepu8_epi32(eight);
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, q), _mm256_permutevar8x32_ps(high, q),
                              _mm256_castsi256_ps(_mm256_slli_epi32(q, 28)));
    };
    for (std::size_t i = 0; i < block_size; i += 32, codes += 16, y += 32) {
      const BytePair halves = nibbles(load_bytes(codes));
      const BytePair q = interleave<1>(halves.second, halves.first);
      for (Index k = 0; k < 2; ++k) {
        const auto x = reinterpret_cast<__m128i>(k == 0 ? q.first : q.second);
        _mm256_storeu_ps(y + 16 * k, look_up_8(x));
        _mm256_storeu_ps(y + 16 * k + 8, look_up_8(_mm_unpackhi_epi64(x, x)));
      }
    }
#else
    for (std::size_t i = 0; i < block_size; i += 2, ++codes, y += 2) {
      y[0] = scaled[*codes >> 4];
      y[1] = scaled[*codes & 15U];
    }
#endif
  }
}

/// Multiplies bytes by two factors, one after the other.
inline void scaled_i8(const U8* SAFETENSORS_RESTRICT codes, std::size_t count, float first,
                      float second, float* SAFETENSORS_RESTRICT y) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    y[i] = to_float(bits_as<I8>(codes[i])) * first * second;
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT
