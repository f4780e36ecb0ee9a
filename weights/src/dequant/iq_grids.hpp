// The grids of GGUF's IQ types: tables of rows of values, which codes select by number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace safetensors::weights {

/// Eight values in a row are loaded as one 64-bit number, four as one of 32 bits.
template <std::size_t count, std::size_t width>
struct Grid {
  std::int8_t rows[count][width];
};

extern const Grid<256, 8> kGridIq2Xxs;
extern const Grid<512, 8> kGridIq2Xs;
extern const Grid<1024, 8> kGridIq2S;
extern const Grid<256, 4> kGridIq3Xxs;
extern const Grid<512, 4> kGridIq3S;
extern const Grid<2048, 8> kGridIq1;  ///< of IQ1_S and IQ1_M

}  // namespace safetensors::weights
