#include "tensors/stored_weight.hpp"

#include <cstdint>
#include <limits>
#include <string>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "dequant/dequant.hpp"

namespace safetensors::weights {

WeightBuffer::Sections StoredWeight::sections(const ModelOptions& /*options*/) const {
  WeightBuffer::Sections sizes{};
  std::size_t section = 0;
  for (const Part& part : parts()) {
    sizes.at(section++) = memory_size(part.tensor->info->nbytes());
  }
  return sizes;
}

std::optional<StoredBytes> StoredWeight::view(const ModelOptions& /*options*/,
                                              const Interrupt& /*interrupt*/) const {
  return std::nullopt;
}

void StoredWeight::write(std::size_t section, std::span<std::byte> to,
                         const ModelOptions& /*options*/, const Interrupt& interrupt) const {
  parts().at(section).tensor->read(to, interrupt);
}

std::vector<std::int64_t> signed_shape(const SourceTensor& tensor) {
  std::vector<std::int64_t> shape;
  shape.reserve(tensor.info->shape.size());
  for (const std::uint64_t size : tensor.info->shape) {
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(Errc::overflow, tensor.file->path(), tensor.info->name,
           "an axis of " + std::to_string(size) + " does not fit in 63 bits");
    }
    shape.push_back(static_cast<std::int64_t>(size));
  }
  return shape;
}

void write_f16(const SourceTensor& tensor, std::span<const std::byte> stored,
               std::span<std::byte> to, const ModelOptions& options, const Interrupt& interrupt) {
  const std::uint64_t count = to.size() / 2;
  const std::uint64_t overflows =
      to_f16_values(tensor.info->dtype, stored.data(), count, to.data(), interrupt);
  if (overflows != 0 && !options.allow_f16_overflow) {
    fail(Errc::f16_overflow, tensor.file->path(), tensor.info->name,
         grouped(overflows) + " of " + grouped(count) + " values are too large for F16");
  }
}

}  // namespace safetensors::weights
