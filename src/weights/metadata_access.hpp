// How readers make metadata.
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

/// Makes values and tables of bytes that were checked: the classes themselves check nothing.
struct MetaAccess {
  /// Deepest arrays that values can be made of: walking them recurses.
  static constexpr std::uint32_t kMaxDepth = 8;

  /// A number, bool or string of exactly these bytes.
  static MetaValue value(MetaType type, std::span<const std::byte> bytes) noexcept;
  /// An array whose elements are these bytes.
  static MetaValue array(MetaType element_type, std::uint64_t count,
                         std::span<const std::byte> bytes) noexcept;

  /// What the value is a view of.
  static const std::byte* data(const MetaValue& value) noexcept { return value.data_; }

  struct Made {
    ModelMetadata metadata;
    std::optional<std::pair<std::size_t, std::size_t>> twice;  ///< places of two equal keys
  };
  /// A table of views into what `owner` keeps alive.
  static Made table(std::shared_ptr<const void> owner, std::vector<ModelMetadata::Item> items);
};

}  // namespace safetensors::weights
