// The names of a model's tensors, which differ between its files, too.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/text.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

/// Throws: Error kDuplicateName if two tensors have the same name.
///
/// shards: the names of the tensors, by file.
inline void refuse_repeated_names(std::span<const std::vector<std::string_view>> shards) {
  std::size_t count = 0;
  for (const auto& names : shards) count += names.size();
  std::unordered_set<std::string_view> seen(count);
  for (const auto& names : shards) {
    for (const std::string_view name : names) {
      if (seen.insert(name).second) continue;
      fail(ErrorCode::kDuplicateName, "tensor `" + clipped(name) + "` occurs twice",
           {.subject = std::string(name)});
    }
  }
}

}  // namespace safetensors
