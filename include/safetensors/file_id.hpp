// Tells whether a path still leads to the file that was opened by it.
#pragma once

#include <cstdint>

namespace safetensors {

/// Identifies a file and its version: differs for another file, and after the file was written to.
struct FileId {
  std::uint64_t device = 0;
  std::uint64_t file = 0;
  std::uint64_t nbytes = 0;
  std::int64_t modified = 0;  ///< time of the last change, in the system's finest unit
  bool operator==(const FileId&) const = default;
};

}  // namespace safetensors
