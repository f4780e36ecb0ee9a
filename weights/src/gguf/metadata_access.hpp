// Access to the private members of metadata, for the readers of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "safetensors/weights/metadata.hpp"

namespace safetensors::weights {

/// Makes values and tables from bytes that the caller has checked.
struct MetaAccess {
  /// Greatest depth of arrays in arrays, because walking them recurses.
  static constexpr std::uint32_t kMaxDepth = 8;

  /// Makes a number, bool or string from exactly these bytes.
  static MetaValue value(MetaType type, std::span<const std::byte> bytes) noexcept;
  /// Makes an array whose elements are these bytes.
  static MetaValue array(MetaType element_type, std::uint64_t count,
                         std::span<const std::byte> bytes) noexcept;

  /// Returns the bytes that the value views.
  static const std::byte* data(const MetaValue& value) noexcept { return value.data_; }

  struct Made {
    ModelMetadata metadata;
    std::optional<std::pair<std::size_t, std::size_t>> twice;  ///< indices of two equal keys
  };
  /// Makes a table of views of bytes that `owner` keeps alive.
  static Made table(std::shared_ptr<const void> owner, std::vector<ModelMetadata::Item> items);
};

}  // namespace safetensors::weights
