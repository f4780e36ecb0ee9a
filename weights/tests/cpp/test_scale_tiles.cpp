// Scales in tiles of 128 x 4.
#include <doctest/doctest.h>

#include <vector>

#include "dequant/scale_tiles.hpp"

using safetensors::weights::ScaleTiles;

TEST_CASE("tiles: the place of a scale") {
  struct Place {
    std::uint64_t row;
    std::uint64_t column;
    std::uint64_t byte;
  };
  constexpr Place kPlaces[] = {{0, 0, 0},   {0, 1, 1},     {1, 0, 16},  {32, 0, 4},
                               {33, 2, 22}, {127, 3, 511}, {0, 4, 512}, {128, 0, 1024}};
  const ScaleTiles tiles{200, 7};
  CHECK(tiles.band_bytes() == 1024);
  CHECK(tiles.matrix_bytes() == 2048);
  std::vector<std::uint8_t> bytes(2 * 2048);
  for (const Place& place : kPlaces) {
    for (const std::uint64_t matrix : {0U, 1U}) {
      const std::uint64_t row = matrix * 200 + place.row;
      const std::uint64_t begin = matrix * 2048;
      CHECK(tiles.band_of(row) == begin + place.row / 128 * 1024);
      bytes[begin + place.byte] = 9;
      std::uint8_t found = 0;
      tiles.copy(bytes.data() + tiles.band_of(row), row, place.column, 1, &found);
      CHECK(found == 9);
      bytes[begin + place.byte] = 0;
    }
  }
}

TEST_CASE("tiles: a run of scales of one row") {
  const ScaleTiles tiles{128, 12};
  std::vector<std::uint8_t> bytes(tiles.matrix_bytes());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7);
  std::vector<std::uint8_t> all(12);
  tiles.copy(bytes.data(), 77, 0, 12, all.data());
  std::vector<std::uint8_t> some(5);
  tiles.copy(bytes.data(), 77, 3, 5, some.data());
  CHECK(some == std::vector<std::uint8_t>(all.begin() + 3, all.begin() + 8));
}
