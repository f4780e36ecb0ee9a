#include <doctest/doctest.h>

#include <cstdint>
#include <string_view>

#include "base/parse_integer.hpp"

using safetensors::parse_integer;

TEST_CASE("numbers") {
  CHECK(parse_integer<std::uint64_t>("18446744073709551615") == UINT64_MAX);
  CHECK(parse_integer<std::uint64_t>("007") == 7U);
  CHECK(parse_integer<std::uint64_t>("7ffc", 16) == 0x7ffcU);
  CHECK(parse_integer<std::int64_t>("-12") == -12);
  CHECK(parse_integer<std::uint8_t>("255") == 255);
  for (const char* const text :
       {"", "max", "-1", "+1", " 1", "1 ", "12kB", "1.0", "1e3", "18446744073709551616"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_integer<std::uint64_t>(text));
  }
  CHECK_FALSE(parse_integer<std::uint64_t>(std::string_view()));
  CHECK_FALSE(parse_integer<std::uint8_t>("256"));
  CHECK_FALSE(parse_integer<std::int64_t>("9223372036854775808"));
}
