// The property that every accepted file has: writing its tensors gives a file with the same
// tensors.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "safetensors/header.hpp"
#include "safetensors/save.hpp"

namespace test {

/// Writes and reads the tensors of `parsed` again. Returns what differs; empty if nothing does.
inline std::string roundtrip_difference(const safetensors::ParsedBytes& parsed) {
  const safetensors::Header& header = parsed.header;
  std::vector<safetensors::TensorData> tensors;
  for (const safetensors::TensorInfo& info : header.tensors()) {
    tensors.push_back(
        {info.name, info.shape, parsed.data.subspan(info.begin, info.nbytes()), info.dtype});
  }
  safetensors::Metadata metadata;
  for (const auto& [key, value] : header.metadata()) metadata.emplace(key, value);
  if (metadata.size() != header.metadata().size()) return "a metadata key twice";

  const safetensors::Buffer file =
      safetensors::serialize(tensors, header.has_metadata() ? &metadata : nullptr);
  const safetensors::ParsedBytes again = safetensors::parse_bytes(file.bytes());
  if (again.header.size() != header.size()) return "another number of tensors";
  if (again.header.has_metadata() != header.has_metadata()) return "metadata, or none";
  if (again.header.metadata().size() != metadata.size()) return "another number of metadata keys";
  for (const auto& [key, value] : again.header.metadata()) {
    const auto found = metadata.find(key);
    if (found == metadata.end() || found->second != value) return "metadata";
  }
  for (const safetensors::TensorData& tensor : tensors) {
    const safetensors::TensorInfo* info = again.header.find(tensor.name);
    if (info == nullptr) return "a name is gone";
    if (info->dtype != tensor.dtype) return "a dtype";
    if (!std::ranges::equal(info->shape, tensor.shape)) return "a shape";
    if (!std::ranges::equal(again.data.subspan(info->begin, info->nbytes()), tensor.bytes)) {
      return "bytes";
    }
  }
  return {};
}

}  // namespace test
