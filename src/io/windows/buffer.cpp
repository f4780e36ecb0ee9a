#include "safetensors/buffer.hpp"

#include <new>
#include <string>

#include "io/windows/handle.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

// Above this size the heap also allocates pages of the system, and keeps them longer.
constexpr std::size_t kPagesThreshold = std::size_t{4} << 20;
constexpr std::align_val_t kAlignment{64};

void* allocate(std::size_t nbytes) noexcept {
  return nbytes >= kPagesThreshold
             ? ::VirtualAlloc(nullptr, nbytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE)
             : ::operator new(nbytes, kAlignment, std::nothrow);
}

}  // namespace

Buffer::Buffer(std::size_t nbytes) : size_(nbytes) {
  if (nbytes == 0) return;
  data_ = static_cast<std::byte*>(allocate(nbytes));
  if (data_ == nullptr) {
    fail(ErrorCode::kOutOfMemory, "no memory for " + std::to_string(nbytes) + " bytes of data");
  }
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (size_ >= kPagesThreshold) {
    ::VirtualFree(data_, 0, MEM_RELEASE);
  } else {
    ::operator delete(data_, kAlignment);
  }
}

}  // namespace safetensors
