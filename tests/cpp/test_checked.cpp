#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "base/checked.hpp"

using safetensors::checked_add;
using safetensors::checked_multiply;
using safetensors::checked_product;

namespace {
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kRoot = std::uint64_t{1} << 32;
}  // namespace

TEST_CASE("sums") {
  CHECK(checked_add(0, 0) == 0U);
  CHECK(checked_add(kMax, 0) == kMax);
  CHECK(checked_add(0, kMax) == kMax);
  CHECK(checked_add(kMax - 5, 5) == kMax);
  CHECK_FALSE(checked_add(kMax - 5, 6));
  CHECK_FALSE(checked_add(kMax, kMax));
}

TEST_CASE("products") {
  CHECK(checked_multiply(0, kMax) == 0U);
  CHECK(checked_multiply(kMax, 1) == kMax);
  CHECK(checked_multiply(kRoot, kRoot - 1) == kRoot * (kRoot - 1));
  CHECK_FALSE(checked_multiply(kRoot, kRoot));
  CHECK_FALSE(checked_multiply(kMax, 2));
}

TEST_CASE("products of many") {
  using Values = std::vector<std::uint64_t>;
  CHECK(checked_product(Values{}, 4) == 4U);
  CHECK(checked_product(Values{2, 3, 5}, 8) == 240U);
  CHECK(checked_product(Values{0, kMax, kMax}, 64) == 0U);
  CHECK_FALSE(checked_product(Values{kMax, kMax, 0}, 64));
  CHECK_FALSE(checked_product(Values{kMax / 8 + 1}, 8));
  CHECK(checked_product(Values{kMax / 8}, 8) == kMax - 7);
}

TEST_CASE("sizes of memory") {
  using safetensors::memory_size;
  CHECK(memory_size(0) == 0);
  CHECK(memory_size(SIZE_MAX) == SIZE_MAX);
  CHECK(memory_size<std::uint32_t>(UINT32_MAX) == UINT32_MAX);
  for (const std::uint64_t nbytes : {std::uint64_t{1} << 32, UINT64_MAX}) {
    CHECK_THROWS_AS((void)memory_size<std::uint32_t>(nbytes), std::bad_alloc);
  }
}
