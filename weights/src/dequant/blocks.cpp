// Decodes blocks of GGUF's types.
#include <algorithm>
#include <cassert>
#include <string>

#include "common/fail.hpp"
#include "dequant/chunks.hpp"
#include "dequant/dequant.hpp"
#include "dequant/ggml_types.hpp"

namespace safetensors::weights {
namespace {

/// Values of the largest block.
constexpr std::size_t kMaxBlockValues = 256;

#define SAFETENSORS_ROW(id, name, elements, nbytes, kernel) \
  static_assert((elements) <= kMaxBlockValues);
SAFETENSORS_GGML_TYPES(SAFETENSORS_ROW)
#undef SAFETENSORS_ROW

Kernels::Blocks kernel_of(std::uint32_t ggml_type, const GgmlType* type, const Kernels& kernels) {
  const Kernels::Blocks kernel = type == nullptr ? nullptr : kernels.blocks[ggml_type];
  if (kernel == nullptr) {
    fail(Errc::unsupported, {}, {},
         "values of type " +
             (type == nullptr ? std::to_string(ggml_type) : std::string(type->name)) +
             " cannot be decoded");
  }
  return kernel;
}

}  // namespace

void dequantize_blocks(std::uint32_t ggml_type, const std::byte* from, std::uint64_t blocks,
                       Output output, std::byte* to, const Interrupt& interrupt,
                       const Kernels& kernels) {
  const GgmlType* const type = find_ggml_type(ggml_type);
  const Kernels::Blocks kernel = kernel_of(ggml_type, type, kernels);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  decode_all(kernels, blocks, type->block_elements, output, to, interrupt,
             [&](std::uint64_t begin, std::size_t count, float* values) {
               kernel(bytes + begin * type->block_bytes, count, values);
             });
}

void dequantize_values(std::uint32_t ggml_type, const std::byte* from, std::uint64_t begin,
                       std::uint64_t end, const ChangeValues& change, Output output, std::byte* to,
                       const Interrupt& interrupt, const Kernels& kernels) {
  const GgmlType* const type = find_ggml_type(ggml_type);
  const Kernels::Blocks kernel = kernel_of(ggml_type, type, kernels);
  assert(begin <= end);
  const std::uint64_t size = type->block_elements;
  const std::uint64_t first = begin / size;  // block of the first value; `from` begins with it
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  const auto decode = [&](std::uint64_t block, std::size_t count, float* values) {
    kernel(bytes + (block - first) * type->block_bytes, count, values);
    if (change) change(block * size, static_cast<std::size_t>(count * size), values);
  };
  // The parts of blocks at both ends go through memory of their own:
  //
  //     | . . begin x x | x x x x | ... | x x end . . |
  const auto put_part = [&](std::uint64_t part_begin, std::uint64_t part_end) {
    alignas(64) float block[kMaxBlockValues];
    const std::uint64_t number = part_begin / size;
    decode(number, 1, block);
    Sink(kernels, output, to)
        .put_piece(part_begin - begin, static_cast<std::size_t>(part_end - part_begin),
                   [&](float* values) {
                     std::copy(block + (part_begin - number * size),
                               block + (part_end - number * size), values);
                   });
  };
  if (begin % size != 0) {
    const std::uint64_t part_end = std::min((first + 1) * size, end);
    put_part(begin, part_end);
    to += (part_end - begin) * size_of(output);
    begin = part_end;
  }
  const std::uint64_t whole_end = end / size * size;
  if (begin < whole_end) {
    decode_all(kernels, (whole_end - begin) / size, static_cast<std::size_t>(size), output, to,
               interrupt, [&](std::uint64_t block, std::size_t count, float* values) {
                 decode(begin / size + block, count, values);
               });
    to += (whole_end - begin) * size_of(output);
    begin = whole_end;
  }
  if (begin < end) put_part(begin, end);
}

}  // namespace safetensors::weights
