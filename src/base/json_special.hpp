// Where a string of JSON ends, or has an escape.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace safetensors {

/// Returns the first byte from `p` on that JSON's strings escape or end at: a quote, a backslash or
/// a control character; `end` if there is none.
[[nodiscard]] inline const char* find_json_special(const char* p, const char* end) noexcept {
#if defined(__SSE2__)
  // Sixteen bytes at a time. The smaller of a byte and 0x1F is the byte if it is a control
  // character.
  const __m128i quotes = _mm_set1_epi8('"');
  const __m128i backslashes = _mm_set1_epi8('\\');
  const __m128i last_control = _mm_set1_epi8(0x1F);
  for (; end - p >= 16; p += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i controls = _mm_cmpeq_epi8(_mm_min_epu8(bytes, last_control), bytes);
    const __m128i ends =
        _mm_or_si128(_mm_cmpeq_epi8(bytes, quotes), _mm_cmpeq_epi8(bytes, backslashes));
    const auto hits = static_cast<unsigned>(_mm_movemask_epi8(_mm_or_si128(ends, controls)));
    if (hits != 0) return p + std::countr_zero(hits);
  }
#endif
  constexpr std::uint64_t kOnes = 0x0101010101010101U;
  constexpr std::uint64_t kHigh = 0x8080808080808080U;
  if constexpr (std::endian::native == std::endian::little) {
    // Eight bytes at a time. (x - 1) & ~x has the high bit set in a byte x that is 0, and so finds
    // the byte c as the zero of w ^ c; (x - 0x20) & ~x likewise finds bytes below 0x20. The borrow
    // of a subtraction can set bits above the lowest hit, which therefore is the only one used.
    // https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord
    for (; end - p >= 8; p += 8) {
      std::uint64_t w = 0;
      std::memcpy(&w, p, sizeof w);
      const std::uint64_t quote = w ^ (kOnes * '"');
      const std::uint64_t backslash = w ^ (kOnes * '\\');
      const std::uint64_t hits = (((quote - kOnes) & ~quote) | ((backslash - kOnes) & ~backslash) |
                                  ((w - kOnes * 0x20) & ~w)) &
                                 kHigh;
      if (hits != 0) return p + std::countr_zero(hits) / 8;
    }
  }
  while (p != end && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
  return p;
}

}  // namespace safetensors
