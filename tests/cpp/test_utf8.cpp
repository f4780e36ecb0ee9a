#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8.hpp"
#include "support.hpp"

using safetensors::find_invalid_utf8;
using safetensors::InvalidUtf8;

namespace {

using Triple = std::array<std::uint32_t, 3>;  // lowest and highest value, bytes

/// Decodes in the simplest way: the value must need this many bytes, and be no surrogate.
bool is_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t length = 0;
    std::uint32_t value = 0;
    if (lead < 0x80) {
      length = 1;
      value = lead;
    } else if ((lead & 0xE0) == 0xC0) {
      length = 2;
      value = lead & 0x1FU;
    } else if ((lead & 0xF0) == 0xE0) {
      length = 3;
      value = lead & 0x0FU;
    } else if ((lead & 0xF8) == 0xF0) {
      length = 4;
      value = lead & 0x07U;
    } else {
      return false;
    }
    if (text.size() - i < length) return false;
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      value = value << 6 | (next & 0x3FU);
    }
    constexpr std::array<Triple, 4> kRanges = {
        {{0, 0x7F, 1}, {0x80, 0x7FF, 2}, {0x800, 0xFFFF, 3}, {0x10000, 0x10FFFF, 4}}};
    const Triple range = kRanges[length - 1];
    if (value < range[0] || value > range[1]) return false;
    if (value >= 0xD800 && value <= 0xDFFF) return false;
    i += length;
  }
  return true;
}

std::string encoded(std::uint32_t value) {
  const auto tail = [](std::uint32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (value < 0x80) return {static_cast<char>(value)};
  if (value < 0x800) return {static_cast<char>(0xC0 | value >> 6), tail(value)};
  if (value < 0x10000) {
    return {static_cast<char>(0xE0 | value >> 12), tail(value >> 6), tail(value)};
  }
  return {static_cast<char>(0xF0 | value >> 18), tail(value >> 12), tail(value >> 6), tail(value)};
}

std::string where(std::string_view text) {
  const std::optional<InvalidUtf8> found = find_invalid_utf8(text);
  return found ? std::to_string(found->offset) + "+" + std::to_string(found->nbytes) : "valid";
}

}  // namespace

TEST_CASE("all texts of one to three bytes agree with a simple decoder") {
  std::string text;
  for (std::uint32_t value = 0; value < 0x1000000; ++value) {
    const std::size_t size = value < 0x100 ? 1 : value < 0x10000 ? 2 : 3;
    text.resize(size);
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(value >> (8 * i));
    if (find_invalid_utf8(text).has_value() == is_utf8(text)) FAIL("differs: ", value);
  }
}

TEST_CASE("all characters are valid, and no surrogate is") {
  for (std::uint32_t value = 0; value <= 0x10FFFF + 0x100; ++value) {
    const bool good = value <= 0x10FFFF && (value < 0xD800 || value > 0xDFFF);
    if (find_invalid_utf8(encoded(value)).has_value() == good) FAIL("differs: ", value);
  }
}

TEST_CASE("the bounds of Unicode's table 3-7 hold for every first and second byte") {
  for (unsigned lead = 0xC0; lead <= 0xFF; ++lead) {
    for (unsigned second = 0; second <= 0xFF; ++second) {
      for (const unsigned third : {0x7FU, 0x80U, 0xBFU, 0xC0U}) {
        for (const unsigned fourth : {0x7FU, 0x80U, 0xBFU, 0xC0U}) {
          const std::string text = {static_cast<char>(lead), static_cast<char>(second),
                                    static_cast<char>(third), static_cast<char>(fourth)};
          if (find_invalid_utf8(text).has_value() == is_utf8(text)) {
            FAIL("differs: ", lead, " ", second, " ", third, " ", fourth);
          }
        }
      }
    }
  }
}

TEST_CASE("a fault is found at every place around the blocks") {
  for (std::size_t size = 1; size < 140; ++size) {
    const test::ExactBytes plain(std::string(size, 'a'));
    CHECK(where(test::text_of(plain.span())) == "valid");
    for (std::size_t at = 0; at < size; ++at) {
      std::string text(size, 'a');
      text[at] = '\xFF';
      const test::ExactBytes exact(text);
      const auto found = find_invalid_utf8(test::text_of(exact.span()));
      if (!found || found->offset != at || found->nbytes != 1) FAIL("size ", size, " at ", at);
    }
  }
}

TEST_CASE("the position and length of the first fault") {
  CHECK(where("") == "valid");
  CHECK(where("a\xE2\x82") == "1+0");
  CHECK(where("a\xF0\x9F\x98") == "1+0");
  CHECK(where("a\xC2") == "1+0");
  CHECK(where("ab\xE2\x82"
              "c") == "2+2");
  CHECK(where("ab\xF0\x9F\x98"
              "c") == "2+3");
  CHECK(where("ab\xE2"
              "c") == "2+1");
  CHECK(where("ab\xED\xA0\x80") == "2+1");
  CHECK(where("ab\xF4\x90\x80\x80") == "2+1");
  CHECK(where("ab\xC0\xAF") == "2+1");
  CHECK(where("ab\x80") == "2+1");
  CHECK(where("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF") == "9+1");
}
