// The arguments of functions that write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked.hpp"
#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/safetensors.h"

namespace safetensors::c {

/// Returns the options of a function that has these flags.
/// Throws: Error kInvalidArgument.
inline safetensors_save_options save_options_of(const safetensors_save_options* given,
                                                std::uint32_t flags) {
  const safetensors_save_options options = options_of(given, "options");
  check_flags(options.flags, flags);
  check_reserved(options.reserved);
  return options;
}

/// Throws: Error kInvalidArgument if a function that cannot be watched is given a watch.
inline void refuse_watch(const safetensors_save_options& options) {
  if (options.watch == nullptr) return;
  fail(ErrorCode::kInvalidArgument, "only safetensors_save takes a watch");
}

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

/// Returns tensors with their bytes.
/// Throws: Error kInvalidArgument (NULL), kUnsupportedDtype.
/// Lifetime: views the caller's memory.
inline std::vector<TensorData> tensors_of(const safetensors_tensor* tensors, std::size_t count) {
  check_pointer(tensors, count, "tensors");
  std::vector<TensorData> result;
  result.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const TensorInfo info = info_of(&tensors[i]);
    check_pointer(tensors[i].data, tensors[i].nbytes, "data");
    result.push_back(
        {info.name,
         info.shape,
         {static_cast<const std::byte*>(tensors[i].data), memory_size(tensors[i].nbytes)},
         info.dtype});
  }
  return result;
}

}  // namespace safetensors::c
