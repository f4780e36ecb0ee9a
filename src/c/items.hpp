// Metadata arguments of the C interface.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "c/guard.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/safetensors.h"

namespace safetensors::c {

/// Returns the metadata of a file to be written; nothing if `items` is NULL.
/// Throws: Error kInvalidArgument (NULL) or kDuplicateName.
inline std::optional<Metadata> metadata_of(const safetensors_item* items, std::size_t count) {
  check_pointer(items, count, "metadata");
  if (items == nullptr) return std::nullopt;
  Metadata metadata;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string_view key = text_of(items[i].key, items[i].key_size, "key");
    const std::string_view value = text_of(items[i].value, items[i].value_size, "value");
    if (!metadata.emplace(key, value).second) {
      fail(ErrorCode::kDuplicateName, "metadata key `" + std::string(key) + "` occurs twice",
           {.subject = std::string(key)});
    }
  }
  return metadata;
}

}  // namespace safetensors::c
