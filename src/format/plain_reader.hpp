// The fast reader of headers, for the form in which writers write them.
#pragma once

#include <string_view>

#include "format/header_builder.hpp"

namespace safetensors::format {

/// Reads a header of the form that writers produce: names and metadata without escapes, entries
/// with just the three fields, plain numbers, and at most one space after a comma or a colon. The
/// result is the same as read_header's.
///
/// Returns false at the first byte of any other form, legal or not: discard the builder then, and
/// use read_header with a new one.
/// Requires: `json` is valid UTF-8.
/// Throws: Error kDuplicateName if a metadata key occurs twice.
[[nodiscard]] bool read_plain_header(std::string_view json, HeaderBuilder& builder);

}  // namespace safetensors::format
