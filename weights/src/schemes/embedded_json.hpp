// JSON that describes a weight, inside a safetensors file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/fail.hpp"
#include "common/json.hpp"
#include "tensors/source_tensors.hpp"

namespace safetensors::weights {

/// The longest description of one weight. Those of real files have a few hundred bytes.
inline constexpr std::size_t kMaxDescription = std::size_t{1} << 16;

/// Parses the description of a weight, of which `tensor` is a part. `limit` is its greatest length.
///
/// Throws: limit, json or duplicate, with the tensor as subject.
[[nodiscard]] inline Json parse_description(std::string_view text, const SourceTensor& tensor,
                                            std::size_t limit = kMaxDescription) {
  const auto refuse = [&](Errc code, const std::string& what) {
    fail(code, tensor.file->path(), tensor.info->name, "its description in JSON: " + what);
  };
  if (text.size() > limit) {
    refuse(Errc::limit, std::to_string(text.size()) + " bytes are more than the " +
                            std::to_string(limit) + " allowed");
  }
  Limits limits;
  limits.json_depth = 16;
  try {
    return parse_json(text, {}, Duplicates::refused, limits);
  } catch (const WeightsError& error) {
    refuse(error.code(), error.what());
  }
  return {};
}

}  // namespace safetensors::weights
