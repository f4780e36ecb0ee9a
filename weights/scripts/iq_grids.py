"""Prints weights/src/dequant/iq_grids.cpp.

GGUF's IQ types choose rows of a grid by number. Which rows a grid has, and in which order, is part
of the format: no formula gives them. This reads them out of the package gguf (0.19.0), which needs
to be installed, and prints them in our own packing. Run it again only if the format gets new grids.
"""

import gguf
from gguf import quants

HEAD = """// The grids of GGUF's IQ types: numbers of the format. Printed by
// weights/scripts/iq_grids.py, which reads them out of the Python package gguf {version}.
// Do not edit.
#include "dequant/iq_grids.hpp"

namespace safetensors::weights {{
namespace {{

/// Unpacks rows: the first value is in the lowest bits, as an index of `values`.
template <std::size_t rows, std::size_t width, std::size_t choices>
constexpr Grid<rows, width> unpack(const std::uint16_t (&packed)[rows],
                                   const std::int8_t (&values)[choices]) noexcept {{
  constexpr unsigned kBits = 16 / width < 3 ? 2 : 3;
  static_assert(choices <= (1U << kBits));
  Grid<rows, width> grid{{}};
  for (std::size_t row = 0; row < rows; ++row) {{
    for (std::size_t i = 0; i < width; ++i) {{
      const unsigned index = (packed[row] >> (kBits * i)) & ((1U << kBits) - 1);
      grid.rows[row][i] = values[index];
    }}
  }}
  return grid;
}}
"""

GRIDS = [
    ("Iq2Xxs", quants.IQ2_XXS),
    ("Iq2Xs", quants.IQ2_XS),
    ("Iq2S", quants.IQ2_S),
    ("Iq3Xxs", quants.IQ3_XXS),
    ("Iq3S", quants.IQ3_S),
    ("Iq1", quants.IQ1_S),
]


def packed_rows(quant: type) -> list[int]:
    quant.init_grid()
    rows, width = quant.grid_shape
    bits = 2 if width == 8 else 3
    index = {value: i for i, value in enumerate(quant.grid_map)}
    return [
        sum(index[int(value)] << bits * i for i, value in enumerate(row))
        for row in quant.grid.reshape(rows, width)
    ]


def main() -> None:
    from importlib.metadata import version

    print(HEAD.format(version=version(gguf.__name__)))
    for name, quant in GRIDS:
        rows = packed_rows(quant)
        values = ", ".join(str(int(value)) for value in quant.grid_map)
        print(f"constexpr std::int8_t k{name}Values[] = {{{values}}};")
        print(f"constexpr std::uint16_t k{name}Rows[{len(rows)}] = {{")
        for i in range(0, len(rows), 12):
            print("    " + ", ".join(f"0x{row:04X}" for row in rows[i : i + 12]) + ",")
        print("};\n")
    print("}  // namespace\n")
    for name, quant in GRIDS:
        rows, width = quant.grid_shape
        print(
            f"constinit const Grid<{rows}, {width}> kGrid{name} = "
            f"unpack<{rows}, {width}>(k{name}Rows, k{name}Values);"
        )
    print("\n}  // namespace safetensors::weights")


if __name__ == "__main__":
    main()
