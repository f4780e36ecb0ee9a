#include "safetensors/mapped_file.hpp"

#include "io/windows/handle.hpp"
#include "io/windows/pending_deletes.hpp"

namespace safetensors {

MappedFile::~MappedFile() {
  ::UnmapViewOfFile(data_);
  io::delete_pending();
}

// The system refuses to truncate a mapped file.
bool is_truncated(std::span<const std::byte>) noexcept { return false; }

}  // namespace safetensors
