#include "device/staging_pool.hpp"

#include <new>
#include <utility>

#include "base/per_process.hpp"

namespace safetensors::device {
namespace {

constinit PerProcess<StagingPool> pools;

}  // namespace

StagingPool& StagingPool::get() { return pools.get(); }

StagingPool::Lease StagingPool::acquire(Context& context, std::size_t nbytes,
                                        std::size_t max_nbytes) {
  std::vector<Arena> dropped;  // too small, or of another driver; freed without the lock
  {
    const std::lock_guard lock(mutex_);
    auto best = idle_.end();
    for (auto arena = idle_.begin(); arena != idle_.end(); ++arena) {
      const bool fits = arena->size() >= nbytes && arena->is_of(context.driver());
      if (fits && (best == idle_.end() || arena->size() < best->size())) best = arena;
    }
    if (best != idle_.end()) {
      Lease lease(*this, std::move(*best));
      idle_.erase(best);
      return lease;
    }
    while (!idle_.empty() && nbytes_ + nbytes > max_nbytes) {
      nbytes_ -= idle_.back().size();
      dropped.push_back(std::move(idle_.back()));
      idle_.pop_back();
    }
    if (nbytes_ + nbytes > max_nbytes) return {};
    nbytes_ += nbytes;  // before it is allocated, so that others see the limit reached
  }
  dropped.clear();
  try {
    Arena arena(context, nbytes, true);
    if (!arena.is_pinned()) uncount(nbytes);
    return {*this, std::move(arena)};
  } catch (...) {
    uncount(nbytes);
    throw;
  }
}

StagingPool::Lease StagingPool::acquire_pageable(Context& context, std::size_t nbytes) {
  return {*this, Arena(context, nbytes, false)};
}

std::size_t StagingPool::release_idle() {
  std::vector<Arena> dropped;  // freed without the lock: the driver may take long
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(idle_);
    for (const Arena& arena : dropped) nbytes_ -= arena.size();
  }
  std::size_t nbytes = 0;
  for (Arena& arena : dropped) {
    const std::size_t size = arena.size();
    if (arena.free()) nbytes += size;
  }
  return nbytes;
}

void StagingPool::give_back(Arena arena) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    idle_.push_back(std::move(arena));
  } catch (const std::bad_alloc&) {  // push_back() did not move it: freed on return
    nbytes_ -= arena.size();
  }
}

void StagingPool::uncount(std::size_t nbytes) noexcept {
  const std::lock_guard lock(mutex_);
  nbytes_ -= nbytes;
}

StagingPool::Lease& StagingPool::Lease::operator=(Lease&& other) noexcept {
  const Lease ended(std::move(*this));
  pool_ = other.pool_;
  arena_ = std::move(other.arena_);
  return *this;
}

StagingPool::Lease::~Lease() {
  if (!arena_.is_own()) {
    arena_.leak();
  } else if (!is_empty() && arena_.is_pinned()) {
    pool_->give_back(std::move(arena_));
  }
}

void StagingPool::Lease::abandon() noexcept {
  const std::size_t nbytes = arena_.size();
  const bool is_counted = nbytes != 0 && arena_.is_pinned();
  arena_.leak();
  // In a forked child the pool is a copy of the parent's, whose mutex may be locked.
  if (is_counted && arena_.is_own()) pool_->uncount(nbytes);
}

}  // namespace safetensors::device
