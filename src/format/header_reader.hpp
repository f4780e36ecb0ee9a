// From JSON text to a HeaderBuilder.
#pragma once

#include <string_view>

#include "format/header_builder.hpp"

namespace safetensors {

/// Reads the header's JSON, which must be valid UTF-8 and end with its last `}`.
/// Throws Error kInvalidHeaderJson or kDuplicateName.
void read_header(std::string_view json, HeaderBuilder& builder);

}  // namespace safetensors
