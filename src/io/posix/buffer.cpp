#include "safetensors/buffer.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <limits>
#include <new>
#include <string>

#include "io/new_memory.hpp"
#include "io/system.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

using io::kHugePage;
using io::page_size;

// Below this, rounding up to huge pages wastes more than they save.
constexpr std::size_t kMappedThreshold = 2 * kHugePage;
constexpr std::align_val_t kAlignment{64};

[[noreturn]] void fail_memory(std::size_t nbytes) {
  fail(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(nbytes) + " bytes of data");
}

/// Maps pages that begin at a multiple of the huge page size: maps one huge page more than needed,
/// and unmaps what is before and after.
///
///     mapped   |   before   |  used, in whole pages  |  after  |
///                           ^ multiple of 2 MiB
std::byte* map_memory(std::size_t nbytes) {
  if (nbytes > std::numeric_limits<std::size_t>::max() - kHugePage) fail_memory(nbytes);
  const std::size_t room = nbytes + kHugePage;
  void* const mapped =
      ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) fail_memory(nbytes);
  auto* const begin = static_cast<std::byte*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t before = (kHugePage - address % kHugePage) % kHugePage;
  if (before != 0) ::munmap(begin, before);
  const std::size_t used = (nbytes + page_size() - 1) / page_size() * page_size();
  const std::size_t after = room - before - used;
  if (after != 0) ::munmap(begin + before + used, after);
  return begin + before;
}

}  // namespace

Buffer::Buffer(std::size_t nbytes) : size_(nbytes) {
  if (nbytes == 0) return;
  if (nbytes >= kMappedThreshold) {
    data_ = map_memory(nbytes);
    return;
  }
  data_ = static_cast<std::byte*>(::operator new(nbytes, kAlignment, std::nothrow));
  if (data_ == nullptr) fail_memory(nbytes);
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (size_ >= kMappedThreshold) {
    ::munmap(data_, size_);
  } else {
    ::operator delete(data_, kAlignment);
  }
}

}  // namespace safetensors
