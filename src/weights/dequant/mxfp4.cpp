#include "weights/dequant/mxfp4.hpp"

#include "weights/dequant/chunks.hpp"
#include "weights/dequant/code_tables.hpp"

namespace safetensors::weights {

void dequantize_mxfp4(const Mxfp4Rows& from, std::uint64_t rows, Output output, std::byte* to,
                      const Interrupt& interrupt, const Kernels& kernels) {
  constexpr std::size_t kGroup = 32;
  const auto* const codes = reinterpret_cast<const std::uint8_t*>(from.codes);
  const auto* const scales = reinterpret_cast<const std::uint8_t*>(from.scales);
  decode_rows(kernels, rows, from.columns, output, to, interrupt,
              [&](std::uint64_t row, std::uint64_t begin, std::size_t count, float* values) {
                const std::uint64_t place = (row * from.stride + from.first) * from.columns + begin;
                const std::size_t groups = count / kGroup;
                float factors[kScratchValues / kGroup];
                for (std::size_t i = 0; i < groups; ++i) {
                  factors[i] = kE8M0Values.values[scales[place / kGroup + i]];
                }
                kernels.fp4(codes + place / 2, nullptr, groups, kGroup, factors, nullptr, values);
              });
}

}  // namespace safetensors::weights
