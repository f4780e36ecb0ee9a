// What a file is when it is not a safetensors file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace safetensors::format {

/// A sentence for an error text, beginning with ". ", when `start`, a file's first bytes, is that
/// of another well-known format; else nothing.
[[nodiscard]] std::string hint_for_foreign_file(std::span<const std::byte> start);

}  // namespace safetensors::format
