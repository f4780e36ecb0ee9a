// A short way through headers in the form that writers give them.
#pragma once

#include <string_view>

#include "format/header_builder.hpp"

namespace safetensors::format {

/// Reads a header that has nothing but what a writer puts there: names and metadata without
/// escapes, entries of just the three fields, plain numbers, and at most one space after a comma
/// or a colon. Of such text there is one reading, read_header's.
///
/// False at the first byte that is anything else, be it legal or not: the builder is then to be
/// thrown away, and the header is read_header's to read or to refuse.
/// `json` is valid UTF-8. Throws Error kDuplicateName for a metadata key that stands twice.
[[nodiscard]] bool read_plain_header(std::string_view json, HeaderBuilder& builder);

}  // namespace safetensors::format
