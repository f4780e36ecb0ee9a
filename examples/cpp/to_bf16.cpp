// Rewrites a file with its F32 tensors as BF16. One tensor at a time is in memory; the others are
// copied from file to file. The result equals that of to_bf16.c byte for byte.
//
//   to_bf16 FROM TO
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "safetensors/safetensors.hpp"

namespace {

using safetensors::Dtype;

/// BF16 is the upper half of an F32, rounded to nearest, ties to even.
std::uint16_t to_bf16(float value) {
  auto bits = std::bit_cast<std::uint32_t>(value);
  bits = std::isnan(value) ? bits | 0x400000U : bits + 0x7FFFU + (bits >> 16 & 1U);
  return static_cast<std::uint16_t>(bits >> 16);
}

std::vector<std::byte> converted(const safetensors::SafeOpen& from,
                                 const safetensors::TensorInfo& info) {
  std::vector<float> values(static_cast<std::size_t>(info.nbytes() / sizeof(float)));
  from.copy_to(info.name, values);
  std::vector<std::byte> bytes;
  bytes.reserve(2 * values.size());
  for (const float value : values) {
    const std::uint16_t bits = to_bf16(value);
    bytes.push_back(static_cast<std::byte>(bits & 0xFFU));
    bytes.push_back(static_cast<std::byte>(bits >> 8));
  }
  return bytes;
}

void rewrite(const char* from_path, const char* to_path) {
  const safetensors::SafeOpen from(from_path, {.backend = safetensors::Backend::kPread});
  const auto tensors = from.header().tensors();
  std::vector<safetensors::TensorSpec> specs;
  for (const safetensors::TensorInfo& info : tensors) {
    specs.push_back({info.name, info.shape, info.dtype == Dtype::kF32 ? Dtype::kBF16 : info.dtype});
  }
  safetensors::Metadata metadata;
  for (const auto& [key, value] : from.metadata()) metadata.emplace(key, value);
  safetensors::FileWriter writer(
      safetensors::make_file_sink(to_path),
      safetensors::plan_file(specs, metadata.empty() ? nullptr : &metadata));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].dtype == Dtype::kF32) {
      writer.write(i, converted(from, tensors[i]));
    } else {
      const safetensors::TensorCopy copy = {i, from.position(tensors[i])};
      writer.copy(*from.source(), {&copy, 1});
    }
  }
  writer.commit();  // without it, the destructor removes what was written
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " FROM TO\n";
    return 2;
  }
  try {
    rewrite(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
