// Decodes blocks of GGUF's types.
#include <string>

#include "weights/dequant/chunks.hpp"
#include "weights/dequant/dequant.hpp"
#include "weights/dequant/ggml_types.hpp"
#include "weights/fail.hpp"

namespace safetensors::weights {

void dequantize_blocks(std::uint32_t ggml_type, const std::byte* from, std::uint64_t blocks,
                       Output output, std::byte* to, const Interrupt& interrupt,
                       const Kernels& kernels) {
  const GgmlType* const type = find_ggml_type(ggml_type);
  const Kernels::Blocks kernel = type == nullptr ? nullptr : kernels.blocks[ggml_type];
  if (kernel == nullptr) {
    fail(Errc::unsupported, {}, {},
         "values of type " +
             (type == nullptr ? std::to_string(ggml_type) : std::string(type->name)) +
             " cannot be decoded");
  }
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  decode_all(kernels, blocks, type->block_elements, output, to, interrupt,
             [&](std::uint64_t begin, std::size_t count, float* values) {
               kernel(bytes + begin * type->block_bytes, count, values);
             });
}

}  // namespace safetensors::weights
