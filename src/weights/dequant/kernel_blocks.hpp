// GGUF's types of short blocks: one scale, no super-blocks.
#pragma once

#include "weights/dequant/kernel_lanes.hpp"

namespace safetensors::weights::SAFETENSORS_VARIANT {

inline void q4_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18, y += 32) {
    const float d = load_f16(x);
    const BytePair q = nibbles(load_bytes(x + 2));
    store(signed_floats(q.first - all(8)) * d, y);
    store(signed_floats(q.second - all(8)) * d, y + 16);
  }
}

inline void q4_1(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 20, y += 32) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    const BytePair q = nibbles(load_bytes(x + 4));
    store(unsigned_floats(q.first) * d + m, y);
    store(unsigned_floats(q.second) * d + m, y + 16);
  }
}

/// 32 values of five bits: low halves, high halves, and their fifth bits.
SAFETENSORS_INLINE BytePair five_bits(const U8* halves, U32 fifth) noexcept {
  const BytePair q = nibbles(load_bytes(halves));
  return {q.first | (mask_of(fifth) & all(16)), q.second | (mask_of(fifth >> 16) & all(16))};
}

inline void q5_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 22, y += 32) {
    const float d = load_f16(x);
    const BytePair q = five_bits(x + 6, load<U32>(x + 2));
    store(signed_floats(q.first - all(16)) * d, y);
    store(signed_floats(q.second - all(16)) * d, y + 16);
  }
}

inline void q5_1(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 24, y += 32) {
    const float d = load_f16(x);
    const float m = load_f16(x + 2);
    const BytePair q = five_bits(x + 8, load<U32>(x + 4));
    store(unsigned_floats(q.first) * d + m, y);
    store(unsigned_floats(q.second) * d + m, y + 16);
  }
}

inline void q8_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 34, y += 32) {
    const float d = load_f16(x);
    store(signed_floats(load_bytes(x + 2)) * d, y);
    store(signed_floats(load_bytes(x + 18)) * d, y + 16);
  }
}

inline void iq4_nl(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                   float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18, y += 32) {
    const float d = load_f16(x);
    const BytePair q = nibbles(load_bytes(x + 2));
    store(signed_floats(look_up(kNonLinear4, q.first)) * d, y);
    store(signed_floats(look_up(kNonLinear4, q.second)) * d, y + 16);
  }
}

/// Values of E2M1, of which the table has the double.
SAFETENSORS_INLINE Values e2m1_floats(const Bytes& codes) noexcept {
  return signed_floats(look_up(kTwiceE2M1, codes)) * 0.5F;
}

inline void mxfp4(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 17, y += 32) {
    const float d = half_of_e8m0(x[0]);  // the table has doubled values
    const BytePair q = nibbles(load_bytes(x + 1));
    store(signed_floats(look_up(kTwiceE2M1, q.first)) * d, y);
    store(signed_floats(look_up(kTwiceE2M1, q.second)) * d, y + 16);
  }
}

/// A scale of NVFP4: E4M3 without its sign, and 0 where that has NaN.
SAFETENSORS_INLINE float nvfp4_scale(U32 code) noexcept {
  if (code == 0x7F) return 0.0F;
  // The sign's bit is not looked at, so this NaN is the number after 448.
  return code == 0xFF ? 480.0F : e4m3_to_f32(code & 0x7FU);
}

/// Four groups of 16 values, in 8 bytes each: their low halves, then their high halves.
inline void nvfp4(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                  float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 36, y += 64) {
    for (Index k = 0; k < 4; k += 2) {
      const BytePair halves = nibbles(load_bytes(x + 4 + 8 * k));
      const BytePair q = interleave<8>(halves.first, halves.second);
      store(e2m1_floats(q.first) * nvfp4_scale(x[k]), y + 16 * k);
      store(e2m1_floats(q.second) * nvfp4_scale(x[k + 1]), y + 16 * k + 16);
    }
  }
}

inline void q1_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18) {
    const float d = load_f16(x);
    for (Index k = 2; k < 18; k += 2, y += 16) {
      // 1 where the bit is set, else -1
      store(signed_floats(negated(all(0xFF), mask_of(load<U16>(x + k)))) * d, y);
    }
  }
}

/// The four values of two bits of each byte, the lowest first.
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

inline void q2_0(const U8* SAFETENSORS_RESTRICT x, std::size_t count,
                 float* SAFETENSORS_RESTRICT y) noexcept {
  for (; count != 0; --count, x += 18, y += 64) {
    const float d = load_f16(x);
    const Quarters q = quarters(load_bytes(x + 2));
    store(signed_floats(q.low.first - all(1)) * d, y);
    store(signed_floats(q.low.second - all(1)) * d, y + 16);
    store(signed_floats(q.high.first - all(1)) * d, y + 32);
    store(signed_floats(q.high.second - all(1)) * d, y + 48);
  }
}

}  // namespace safetensors::weights::SAFETENSORS_VARIANT
