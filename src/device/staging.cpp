#include "device/staging.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/per_process.hpp"
#include "io/system.hpp"
#include "safetensors/device.hpp"
#include "safetensors/error.hpp"

namespace safetensors::device {
namespace {

std::size_t whole_pages(std::size_t nbytes) {
  const std::size_t page = io::page_size();
  return (nbytes + page - 1) / page * page;
}

/// All staging memory of the process.
struct Staging {
  std::mutex mutex;
  std::vector<Arena> idle;
  std::size_t nbytes = 0;  // idle or in use
};

constinit PerProcess<Staging> staging;  // a forked process cannot use its parent's

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
  // With room to begin at a page, and none of the last page for anybody else.
  memory_ = std::make_unique<Memory>(Memory{Buffer(whole_pages(nbytes_) + page)});
  std::byte* const begin = memory_->buffer.data();
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(begin) % page;
  data_ = beyond == 0 ? begin : begin + (page - beyond);
  // By the thread that will fill it: memory then lies beside its processor.
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
  } catch (const Error&) {  // the device died
    return false;
  }
}

bool Arena::free() noexcept {
  // Whoever gets these addresses next may fork, and expects them in the child.
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
    static std::atomic<Memory*> lost{nullptr};  // a list that is only added to
    Memory* const memory = memory_.release();
    memory->next = lost.load();
    while (!lost.compare_exchange_weak(memory->next, memory)) {
    }
  }
  data_ = nullptr;
  nbytes_ = 0;
  kind_ = Kind::kPageable;
}

Arena take_arena(Context& context, std::size_t nbytes, std::size_t most_nbytes) {
  Staging& all = staging.get();
  std::vector<Arena> dropped;  // freed after the lock is gone
  {
    const std::lock_guard lock(all.mutex);
    auto best = all.idle.end();
    for (auto arena = all.idle.begin(); arena != all.idle.end(); ++arena) {
      const bool fits = arena->size() >= nbytes && arena->driver() == &context.driver();
      if (fits && (best == all.idle.end() || arena->size() < best->size())) best = arena;
    }
    if (best != all.idle.end()) {
      Arena found = std::move(*best);
      all.idle.erase(best);
      return found;
    }
    while (!all.idle.empty() && all.nbytes + nbytes > most_nbytes) {
      all.nbytes -= all.idle.back().size();
      dropped.push_back(std::move(all.idle.back()));
      all.idle.pop_back();
    }
    if (all.nbytes + nbytes > most_nbytes) return {};
    all.nbytes += nbytes;  // before it is there, so that others count it
  }
  dropped.clear();
  try {
    Arena arena(context, nbytes, true);
    if (arena.kind() != Arena::Kind::kPageable) return arena;
    const std::lock_guard lock(all.mutex);
    all.nbytes -= nbytes;  // not pinned: not kept
    return arena;
  } catch (...) {
    const std::lock_guard lock(all.mutex);
    all.nbytes -= nbytes;
    throw;
  }
}

void give_arena(Arena arena) noexcept {
  if (arena.size() == 0 || arena.kind() == Arena::Kind::kPageable) return;
  Staging& all = staging.get();
  const std::lock_guard lock(all.mutex);
  try {
    all.idle.push_back(std::move(arena));
  } catch (const std::bad_alloc&) {
    all.nbytes -= arena.size();
  }
}

void lose_arena(Arena arena) noexcept {
  const std::size_t nbytes = arena.size();
  const bool is_counted = arena.kind() != Arena::Kind::kPageable;
  arena.leak();
  if (!is_counted) return;
  Staging& all = staging.get();
  const std::lock_guard lock(all.mutex);
  all.nbytes -= nbytes;
}

}  // namespace safetensors::device

namespace safetensors {

std::size_t release_staging() {
  std::vector<device::Arena> dropped;  // freed without the lock: the driver may take long
  {
    device::Staging& all = device::staging.get();
    const std::lock_guard lock(all.mutex);
    dropped.swap(all.idle);
    for (const device::Arena& arena : dropped) all.nbytes -= arena.size();
  }
  std::size_t nbytes = 0;
  for (device::Arena& arena : dropped) {
    const std::size_t size = arena.size();
    if (arena.free()) nbytes += size;
  }
  return nbytes;
}

}  // namespace safetensors
