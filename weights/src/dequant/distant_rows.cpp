#include "dequant/distant_rows.hpp"

#include <algorithm>

#include "dequant/chunks.hpp"

namespace safetensors::weights {
namespace {

class DistantDecoder {
 public:
  DistantDecoder(const DistantRows& from, std::uint64_t first) : from_(from), first_(first) {}

  /// Decodes a piece of a row, see decode_rows().
  void operator()(std::uint64_t row, std::uint64_t begin, std::size_t count, float* to) const {
    const unsigned mask = (1U << from_.bits) - 1;
    const std::uint64_t groups = from_.columns / from_.group;
    for (std::size_t i = 0; i < count;) {
      const std::uint64_t column = begin + i;
      const std::uint64_t in_group = column % from_.group;
      const std::uint64_t local = row * groups + column / from_.group;
      const std::uint64_t group = first_ * groups + local;
      const auto shift_bits = static_cast<unsigned>(group / from_.lines) * from_.bits;
      const std::uint8_t* codes = from_.codes.at(group % from_.lines * from_.group + in_group);
      const std::size_t end = std::min(count, i + static_cast<std::size_t>(from_.group - in_group));
      const float scale = from_.scales[local];
      const float shift = from_.shifts[local];
      if (from_.shifts_codes) {
        for (; i < end; ++i) {
          to[i] = (static_cast<float>(*codes++ >> shift_bits & mask) - shift) * scale;
        }
      } else {
        for (; i < end; ++i) {
          to[i] = static_cast<float>(*codes++ >> shift_bits & mask) * scale - shift;
        }
      }
    }
  }

 private:
  const DistantRows& from_;
  std::uint64_t first_;
};

}  // namespace

void dequantize_distant(const DistantRows& from, std::uint64_t first, std::uint64_t rows,
                        Output output, std::byte* to, const Interrupt& interrupt,
                        const Kernels& kernels) {
  decode_rows(kernels, rows, from.columns, output, to, interrupt, DistantDecoder(from, first));
}

}  // namespace safetensors::weights
