// The complete reader of headers: accepts every header that the format allows.
#pragma once

#include <string_view>

#include "format/header_builder.hpp"

namespace safetensors {

/// Reads a header's JSON into `builder`.
/// Requires: `json` is valid UTF-8 and ends with `}`.
/// Throws: Error kInvalidHeaderJson or kDuplicateName.
void read_header(std::string_view json, HeaderBuilder& builder);

}  // namespace safetensors
