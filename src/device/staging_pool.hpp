// Staging memory that is kept from load to load, as pinning memory is slow.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "device/arena.hpp"

namespace safetensors::device {

/// The process's staging memory.
///
///        acquire()           ~Lease()
///   idle ---------> in use -----------> idle     pinned memory: counted until it is released
///                     | abandon()
///                     +-----------> leaked, no longer counted
///
/// Thread safety: all members may be called by several threads at once.
class StagingPool {
 public:
  /// Staging memory of one reader, returned to the pool by the destructor. Move-only.
  ///
  /// Requires: no copy from the memory is in flight when the lease ends, unless it was abandoned.
  class Lease {
   public:
    /// Makes an empty lease.
    Lease() noexcept = default;
    Lease(Lease&& other) noexcept = default;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();

    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return arena_.bytes(); }
    [[nodiscard]] bool is_empty() const noexcept { return arena_.size() == 0; }
    /// Ends the lease without reusing or freeing the memory: for a device that may still read it.
    void abandon() noexcept;

   private:
    friend class StagingPool;
    Lease(StagingPool& pool, Arena arena) noexcept : pool_(&pool), arena_(std::move(arena)) {}

    StagingPool* pool_ = nullptr;
    Arena arena_;
  };

  StagingPool() = default;
  /// Returns this process's pool. A forked child starts with an empty one.
  [[nodiscard]] static StagingPool& get();

  /// Returns at least `nbytes`, pinned if the driver can. The result is empty if the process's
  /// pinned memory would exceed `max_nbytes`.
  ///
  /// Requires: the context is current, here and for acquire_pageable().
  /// Throws: Error kOutOfMemory.
  [[nodiscard]] Lease acquire(Context& context, std::size_t nbytes, std::size_t max_nbytes);
  /// Returns memory that is not pinned, which has no limit and is not kept.
  [[nodiscard]] Lease acquire_pageable(Context& context, std::size_t nbytes);
  /// Frees idle memory. Returns the number of bytes freed.
  std::size_t release_idle();

 private:
  void give_back(Arena arena) noexcept;
  void uncount(std::size_t nbytes) noexcept;

  std::mutex mutex_;
  std::vector<Arena> idle_;
  std::size_t nbytes_ = 0;  // pinned, idle or in use
};

}  // namespace safetensors::device
