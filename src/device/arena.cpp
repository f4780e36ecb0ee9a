#include "device/arena.hpp"

#include <atomic>
#include <utility>

#include "io/system.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

std::size_t whole_pages(std::size_t nbytes) {
  const std::size_t page = io::page_size();
  return (nbytes + page - 1) / page * page;
}

}  // namespace

Arena::Arena(Context& context, std::size_t nbytes, bool is_pinned)
    : context_(&context), nbytes_(nbytes) {
  const CudaDriver& driver = context.driver();
  if (is_pinned && context.properties().can_register) {
    allocate();
    if (io::copy_on_fork(pages(), false) && driver.pin(data_, nbytes)) {
      kind_ = Kind::kRegistered;
      return;
    }
    (void)free();
    nbytes_ = nbytes;
  }
  if (void* const memory = is_pinned ? driver.allocate_pinned(nbytes) : nullptr) {
    data_ = static_cast<std::byte*>(memory);
    kind_ = Kind::kAllocated;
    return;
  }
  allocate();
}

void Arena::allocate() {
  const std::size_t page = io::page_size();
  // Page-aligned, and in whole pages, as pinning and copy_on_fork() affect whole pages:
  //
  //   buffer  |..beyond..|<- data_: nbytes_ ->|....|       (..: unused)
  //           ^          ^ a page begins           ^ a page ends
  memory_ = std::make_unique<Memory>(Memory{Buffer(whole_pages(nbytes_) + page)});
  std::byte* const begin = memory_->buffer.data();
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(begin) % page;
  data_ = beyond == 0 ? begin : begin + (page - beyond);
  // The thread that will fill the pages touches them first: they are then on its NUMA node.
  for (std::size_t at = 0; at < nbytes_; at += page) data_[at] = std::byte{0};
}

std::span<std::byte> Arena::pages() const noexcept { return {data_, whole_pages(nbytes_)}; }

Arena::Arena(Arena&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      memory_(std::move(other.memory_)),
      data_(std::exchange(other.data_, nullptr)),
      nbytes_(std::exchange(other.nbytes_, 0)),
      kind_(std::exchange(other.kind_, Kind::kPageable)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  Arena taken(std::move(other));
  std::swap(context_, taken.context_);
  std::swap(memory_, taken.memory_);
  std::swap(data_, taken.data_);
  std::swap(nbytes_, taken.nbytes_);
  std::swap(kind_, taken.kind_);
  return *this;
}

bool Arena::unpin() const noexcept {
  if (!context_->is_own()) return false;
  try {
    const CudaDriver& driver = context_->driver();
    const ScopedContext current(driver, context_->handle());
    const ScopedRelaxedCapture relaxed(driver);
    return kind_ == Kind::kRegistered ? driver.unpin(data_) : driver.free_pinned(data_);
  } catch (const Error&) {  // the device is dead
    return false;
  }
}

bool Arena::free() noexcept {
  // Pages must be copied on fork again before they are freed: their next owner may rely on it.
  const bool is_free = (kind_ == Kind::kPageable || unpin()) &&
                       (memory_ == nullptr || io::copy_on_fork(pages(), true));
  if (!is_free) leak();
  memory_.reset();
  data_ = nullptr;
  nbytes_ = 0;
  kind_ = Kind::kPageable;
  return is_free;
}

void Arena::leak() noexcept {
  if (memory_) {
    static std::atomic<Memory*> leaked{nullptr};  // reachable, so that leak checkers are silent
    Memory* const memory = memory_.release();
    memory->next = leaked.load();
    while (!leaked.compare_exchange_weak(memory->next, memory)) {
    }
  }
  data_ = nullptr;
  nbytes_ = 0;
  kind_ = Kind::kPageable;
}

}  // namespace safetensors::device
