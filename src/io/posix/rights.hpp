// Mode, owner, group and access list of a file.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "safetensors/detail/folder.hpp"

namespace safetensors::io {

/// A file whose rights are copied.
struct OldFile {
  detail::OwnPlace place;
  struct stat status;
};

/// Gives an open file of this process the mode, owner, group and access list of another file as far
/// as the system allows, and grants nobody a right that the other file did not grant.
///
/// Requires: until now the file was accessible to its owner only.
void take_over(int descriptor, const OldFile& from) noexcept;

/// Returns the name of a user, or the number of one without a name.
[[nodiscard]] std::string user_name(std::uint32_t user);

}  // namespace safetensors::io
