#include "device/staging.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "io/process.hpp"
#include "safetensors/device.hpp"

namespace safetensors::device {
namespace {

constexpr std::size_t kPage = 4096;

/// All staging memory of the process.
struct Staging {
  std::mutex mutex;
  std::vector<Arena> idle;
  std::size_t nbytes = 0;  // idle or in use
  std::uint64_t generation = io::fork_generation();
};

/// This process's. A forked one cannot use its parent's, which is no longer pinned there, and whose
/// lock may be held for ever.
Staging& staging() {
  static std::atomic<Staging*> current{new Staging()};
  Staging* found = current.load(std::memory_order_acquire);
  if (found->generation == io::fork_generation()) return *found;
  auto* const fresh = new Staging();
  if (current.compare_exchange_strong(found, fresh)) return *fresh;
  delete fresh;
  return *found;
}

}  // namespace

Arena::Arena(Context& context, std::size_t nbytes, bool is_pinned)
    : context_(&context), nbytes_(nbytes) {
  const Driver& driver = context.driver();
  const auto use_own = [&] {
    memory_ = std::make_unique<Memory>(Memory{Buffer(nbytes)});
    data_ = memory_->buffer.data();
    // By the thread that will fill it: memory then lies beside its processor.
    for (std::size_t at = 0; at < nbytes; at += kPage) data_[at] = std::byte{0};
  };
  if (is_pinned && context.facts().can_register) {
    use_own();
    if (driver.pin(data_, nbytes)) {
      kind_ = Kind::kRegistered;
      return;
    }
  }
  if (void* const memory = is_pinned ? driver.allocate_pinned(nbytes) : nullptr) {
    memory_.reset();
    data_ = static_cast<std::byte*>(memory);
    kind_ = Kind::kAllocated;
    return;
  }
  if (memory_ == nullptr) use_own();
}

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

Arena::~Arena() {
  if (data_ == nullptr || kind_ == Kind::kPageable) return;
  const Driver& driver = context_->driver();
  try {
    const Entered entered(driver, context_->handle());
    if (kind_ == Kind::kRegistered) {
      driver.unpin(data_);
    } else {
      driver.free_pinned(data_);
    }
  } catch (const Error&) {  // a device that died: its memory is nobody's to free
    leak();
  }
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
  Staging& all = staging();
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
  Staging& all = staging();
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
  Staging& all = staging();
  const std::lock_guard lock(all.mutex);
  all.nbytes -= nbytes;
}

}  // namespace safetensors::device

namespace safetensors {

std::size_t release_staging() {
  std::vector<device::Arena> dropped;
  device::Staging& all = device::staging();
  std::size_t nbytes = 0;
  const std::lock_guard lock(all.mutex);
  for (const device::Arena& arena : all.idle) nbytes += arena.size();
  all.nbytes -= nbytes;
  dropped.swap(all.idle);
  return nbytes;
}

}  // namespace safetensors
