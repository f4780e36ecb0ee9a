#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "safetensors/dtype.hpp"

using safetensors::Dtype;

TEST_CASE("names and sizes are in the order of the layout") {
  const std::vector<std::pair<std::string, unsigned>> wanted = {
      {"U64", 64},    {"I64", 64},        {"F64", 64},        {"C64", 64},    {"F32", 32},
      {"U32", 32},    {"I32", 32},        {"BF16", 16},       {"F16", 16},    {"U16", 16},
      {"I16", 16},    {"F8_E5M2FNUZ", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"I8", 8},          {"U8", 8},          {"F6_E3M2", 6}, {"F6_E2M3", 6},
      {"F4", 4},      {"BOOL", 8}};
  REQUIRE(safetensors::all_dtypes().size() == wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Dtype dtype = safetensors::all_dtypes()[i];
    CHECK(static_cast<std::size_t>(dtype) == i);
    CHECK(safetensors::name(dtype) == wanted[i].first);
    CHECK(safetensors::bit_size(dtype) == wanted[i].second);
    CHECK(safetensors::parse_dtype(wanted[i].first) == dtype);
  }
}

TEST_CASE("an invalid dtype has no name and no size") {
  for (int value = 0; value < 256; ++value) {
    const auto dtype = static_cast<Dtype>(value);
    const bool exists = static_cast<std::size_t>(value) < safetensors::kDtypeCount;
    CAPTURE(value);
    CHECK((safetensors::bit_size(dtype) != 0) == exists);
    CHECK(safetensors::name(dtype).empty() != exists);
  }
}

TEST_CASE("texts that resemble names are not names") {
  for (const Dtype dtype : safetensors::all_dtypes()) {
    const std::string name(safetensors::name(dtype));
    for (std::size_t size = 0; size < name.size(); ++size) {
      const auto shorter = safetensors::parse_dtype(name.substr(0, size));
      CHECK((!shorter || safetensors::name(*shorter) == name.substr(0, size)));
    }
    CHECK_FALSE(safetensors::parse_dtype(name + " "));
    CHECK_FALSE(safetensors::parse_dtype(name + std::string(1, '\0')));
    CHECK_FALSE(safetensors::parse_dtype(" " + name));
    std::string lower = name;
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    CHECK_FALSE(safetensors::parse_dtype(lower));
  }
  CHECK_FALSE(safetensors::parse_dtype(""));
}
