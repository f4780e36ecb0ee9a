// The names of a model's tensors, which differ between its files, too.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/name_hash.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

/// Throws: Error kDuplicateName if two tensors have the same name; kInvalidHeaderUtf8 for a name
///   that is not UTF-8, which an index cannot have.
///
/// shards: the names of the tensors, by file.
inline void refuse_bad_names(std::span<const std::vector<std::string_view>> shards) {
  std::size_t count = 0;
  for (const auto& names : shards) count += names.size();
  const auto hash = [seed = secret_seed()](std::string_view name) {
    return static_cast<std::size_t>(hash_name(name, seed));
  };
  std::unordered_set<std::string_view, decltype(hash)> seen(count, hash);
  for (const auto& names : shards) {
    for (const std::string_view name : names) {
      if (find_invalid_utf8(name)) {
        fail(ErrorCode::kInvalidHeaderUtf8, "the name `" + clipped(name) + "` is not UTF-8",
             {.subject = std::string(name)});
      }
      if (seen.insert(name).second) continue;
      fail(ErrorCode::kDuplicateName, "tensor `" + clipped(name) + "` occurs twice",
           {.subject = std::string(name)});
    }
  }
}

}  // namespace safetensors
