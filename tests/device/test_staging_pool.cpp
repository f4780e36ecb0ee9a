// Leases of staging memory: what comes back to the pool, what counts, and what is lost.
#include <doctest/doctest.h>

#include <cstddef>
#include <utility>

#include "device/context.hpp"
#include "device/staging_pool.hpp"
#include "load_support.hpp"
#include "posix_support.hpp"

namespace {

using safetensors::device::Context;
using safetensors::device::ScopedContext;
using safetensors::device::StagingPool;
using test::Current;
using test::FakeDriver;

constexpr std::size_t kNbytes = 65'536;

Context& context() {
  (void)test::fake_device();
  return Context::of(*safetensors::device::cuda_driver(), 0);
}

}  // namespace

TEST_CASE("staging pool: a lease returns its memory, which the next one gets") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  StagingPool pool;
  const std::byte* first = nullptr;
  {
    const StagingPool::Lease lease = pool.acquire(context(), kNbytes, kNbytes);
    REQUIRE(lease.bytes().size() == kNbytes);
    first = lease.bytes().data();
    CHECK(pool.acquire(context(), kNbytes, kNbytes).is_empty());  // the limit counts what is in use
    CHECK(pool.release_idle() == 0);
  }
  {
    StagingPool::Lease lease = pool.acquire(context(), 1, kNbytes);
    CHECK(lease.bytes().data() == first);
    StagingPool::Lease other = std::move(lease);
    CHECK(other.bytes().data() == first);
    lease = std::move(other);
    lease = {};
    CHECK(pool.acquire(context(), kNbytes, kNbytes).bytes().data() == first);
  }
  CHECK(pool.release_idle() == kNbytes);
  CHECK(pool.release_idle() == 0);
}

TEST_CASE("staging pool: idle memory that is too small makes room") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  StagingPool pool;
  (void)pool.acquire(context(), kNbytes, kNbytes);
  CHECK(pool.acquire(context(), 2 * kNbytes, kNbytes).is_empty());
  CHECK(pool.acquire(context(), 2 * kNbytes, 2 * kNbytes).bytes().size() == 2 * kNbytes);
  CHECK(pool.release_idle() == 2 * kNbytes);
}

TEST_CASE("staging pool: an abandoned lease is not reused, not freed and no longer counted") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  const long pinned = fakecuda_stat(fake::kRangesNow);
  StagingPool pool;
  {
    StagingPool::Lease lease = pool.acquire(context(), kNbytes, kNbytes);
    lease.abandon();
    CHECK(lease.is_empty());
  }
  CHECK(pool.release_idle() == 0);
  CHECK(fakecuda_stat(fake::kRangesNow) == pinned + 1);
  CHECK_FALSE(pool.acquire(context(), kNbytes, kNbytes).is_empty());
  CHECK(pool.release_idle() == kNbytes);
  CHECK(fakecuda_stat(fake::kRangesNow) == pinned + 1);
}

TEST_CASE("staging pool: memory that cannot be pinned is neither counted nor kept") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  StagingPool pool;
  CHECK(pool.acquire_pageable(context(), kNbytes).bytes().size() == kNbytes);
  fakecuda_fault("cuMemHostRegister_v2", 0, 2);
  fakecuda_fault("cuMemHostAlloc", 0, 2);
  {
    const StagingPool::Lease pageable = pool.acquire(context(), kNbytes, kNbytes);
    CHECK(pageable.bytes().size() == kNbytes);
    CHECK_FALSE(pool.acquire(context(), kNbytes, kNbytes).is_empty());
  }
  CHECK(pool.release_idle() == 0);
}

TEST_CASE("staging pool: a forked process drops its copy of a lease") {
  const FakeDriver driver(fake::kEager);
  const Current current(0);
  StagingPool pool;
  StagingPool::Lease kept = pool.acquire(context(), kNbytes, 4 * kNbytes);
  StagingPool::Lease other = pool.acquire(context(), kNbytes, 4 * kNbytes);
  const int status = test::in_child([&] {
    kept.abandon();
    other = {};
    return kept.is_empty() && other.is_empty() && pool.release_idle() == 0 ? 0 : 1;
  });
  CHECK(status == 0);
  kept = {};
  other = {};
  CHECK(pool.release_idle() == 2 * kNbytes);
}
