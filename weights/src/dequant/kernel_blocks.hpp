// GGUF's types with one scale for each block of 32 to 128 values. ggml_blocks.hpp has the layouts
// and formulas.
#pragma once

#include "dequant/ggml_blocks.hpp"
#include "dequant/kernel_lanes.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

// Each kernel decodes one block to y; each_block() of kernels_all.hpp has the loop over blocks.

SAFETENSORS_INLINE void q4_0(const ggml::Q4_0& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const BytePair q = nibbles(load_bytes(x.codes));
  store(signed_floats(q.first - all(8)) * scale, y);
  store(signed_floats(q.second - all(8)) * scale, y + 16);
}

SAFETENSORS_INLINE void q4_1(const ggml::Q4_1& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const float min = load_f16(x.min);
  const BytePair q = nibbles(load_bytes(x.codes));
  store(unsigned_floats(q.first) * scale + min, y);
  store(unsigned_floats(q.second) * scale + min, y + 16);
}

/// Returns 32 codes of five bits: those of the low nibbles, then those of the high ones.
SAFETENSORS_INLINE BytePair five_bits(const U8* codes, U32 fifth_bits) noexcept {
  const BytePair q = nibbles(load_bytes(codes));
  return {q.first | (mask_of(fifth_bits) & all(16)),
          q.second | (mask_of(fifth_bits >> 16) & all(16))};
}

SAFETENSORS_INLINE void q5_0(const ggml::Q5_0& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const BytePair q = five_bits(x.codes, load<U32>(x.fifth_bits));
  store(signed_floats(q.first - all(16)) * scale, y);
  store(signed_floats(q.second - all(16)) * scale, y + 16);
}

SAFETENSORS_INLINE void q5_1(const ggml::Q5_1& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const float min = load_f16(x.min);
  const BytePair q = five_bits(x.codes, load<U32>(x.fifth_bits));
  store(unsigned_floats(q.first) * scale + min, y);
  store(unsigned_floats(q.second) * scale + min, y + 16);
}

SAFETENSORS_INLINE void q8_0(const ggml::Q8_0& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  store(signed_floats(load_bytes(x.codes)) * scale, y);
  store(signed_floats(load_bytes(x.codes + 16)) * scale, y + 16);
}

SAFETENSORS_INLINE void iq4_nl(const ggml::IQ4_NL& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const BytePair q = nibbles(load_bytes(x.codes));
  store(signed_floats(look_up(kNonLinear4, q.first)) * scale, y);
  store(signed_floats(look_up(kNonLinear4, q.second)) * scale, y + 16);
}

/// The table has doubled values, so that they are integers.
SAFETENSORS_INLINE Values e2m1_floats(const Bytes& codes) noexcept {
  return signed_floats(look_up(kTwiceE2M1, codes)) * 0.5F;
}

SAFETENSORS_INLINE void mxfp4(const ggml::MXFP4& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float half_scale = half_of_e8m0(x.scale[0]);  // because the table has doubled values
  const BytePair q = nibbles(load_bytes(x.codes));
  store(signed_floats(look_up(kTwiceE2M1, q.first)) * half_scale, y);
  store(signed_floats(look_up(kTwiceE2M1, q.second)) * half_scale, y + 16);
}

/// A scale of NVFP4: E4M3 without its sign. As in ggml, 0x7F (NaN) is 0, and 0xFF is not NaN but
/// the number that would follow the largest, 448.
SAFETENSORS_INLINE float nvfp4_scale(U32 code) noexcept {
  if (code == 0x7F) return 0.0F;
  return code == 0xFF ? 480.0F : e4m3_to_f32(code & 0x7FU);
}

SAFETENSORS_INLINE void nvfp4(const ggml::NVFP4& x, float* SAFETENSORS_RESTRICT y) noexcept {
  for (Index k = 0; k < 4; k += 2) {  // two groups fill the 16 bytes of a register
    const BytePair halves = nibbles(load_bytes(x.codes[k]));
    const BytePair q = interleave<8>(halves.first, halves.second);
    store(e2m1_floats(q.first) * nvfp4_scale(x.scales[k]), y + 16 * k);
    store(e2m1_floats(q.second) * nvfp4_scale(x.scales[k + 1]), y + 16 * k + 16);
  }
}

SAFETENSORS_INLINE void q1_0(const ggml::Q1_0& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  for (Index k = 0; k < 16; k += 2, y += 16) {
    // -1 in all bytes, negated where the bit is set.
    store(signed_floats(negated(all(0xFF), mask_of(load<U16>(x.bits + k)))) * scale, y);
  }
}

/// The codes of two bits of 16 bytes, in order: each byte has four, the first in its lowest bits.
struct Quarters {
  BytePair low;
  BytePair high;
};

SAFETENSORS_INLINE Quarters quarters(const Bytes& bytes) noexcept {
  const Bytes three = all(3);
  const BytePair even = interleave<1>(bytes & three, down(bytes, 2) & three);
  const BytePair odd = interleave<1>(down(bytes, 4) & three, down(bytes, 6) & three);
  return {interleave<2>(even.first, odd.first), interleave<2>(even.second, odd.second)};
}

SAFETENSORS_INLINE void q2_0(const ggml::Q2_0& x, float* SAFETENSORS_RESTRICT y) noexcept {
  const float scale = load_f16(x.scale);
  const Quarters q = quarters(load_bytes(x.codes));
  store(signed_floats(q.low.first - all(1)) * scale, y);
  store(signed_floats(q.low.second - all(1)) * scale, y + 16);
  store(signed_floats(q.high.first - all(1)) * scale, y + 32);
  store(signed_floats(q.high.second - all(1)) * scale, y + 48);
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT
