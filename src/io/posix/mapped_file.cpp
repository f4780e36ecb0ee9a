#include "safetensors/mapped_file.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "io/posix/mapped_files.hpp"
#include "io/system.hpp"

namespace safetensors {

MappedFile::~MappedFile() {
  // Another thread that replaces mappings must not find other memory at these addresses.
  const io::MappingsLock lock;
  ::munmap(data_, size_);
  io::MappingsLock::changed();
}

bool is_truncated(std::span<const std::byte> mapped) noexcept {
#if defined(__linux__)
  // MADV_POPULATE_READ (Linux 5.14) reads a page in, and fails with EFAULT where touching it would
  // raise SIGBUS. Files are truncated at their end, so checking the last page is enough.
  constexpr int kPopulateRead = 22;
  if (mapped.empty()) return false;
  const std::size_t page_size = io::page_size();
  const std::byte* const last = &mapped.back();
  const std::byte* const page = last - reinterpret_cast<std::uintptr_t>(last) % page_size;
  return ::madvise(const_cast<std::byte*>(page), page_size, kPopulateRead) != 0 && errno == EFAULT;
#else
  (void)mapped;
  return false;
#endif
}

}  // namespace safetensors
