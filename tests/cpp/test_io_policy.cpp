#include <doctest/doctest.h>

#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "fake_source.hpp"
#include "io/io_policy.hpp"
#include "io/parallel.hpp"
#include "io/read_ahead.hpp"
#include "io/system.hpp"

using safetensors::io::choose_io_policy;
using safetensors::io::IoPolicy;
using safetensors::io::is_remote_type;

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

}  // namespace

TEST_CASE("a local file is mapped, whatever its size") {
  CHECK(choose_io_policy({false, 1, 100 * kGiB}) == IoPolicy::kMap);
  CHECK(choose_io_policy({false, 200 * kGiB, kGiB}) == IoPolicy::kMap);
  CHECK(choose_io_policy({false, 200 * kGiB, 0}) == IoPolicy::kMap);
}

TEST_CASE("a remote file is warmed when the page cache can keep it, else read") {
  CHECK(choose_io_policy({true, 0, 10 * kGiB}) == IoPolicy::kWarmAndMap);
  CHECK(choose_io_policy({true, 9 * kGiB, 10 * kGiB}) == IoPolicy::kWarmAndMap);
  CHECK(choose_io_policy({true, 9 * kGiB + 1, 10 * kGiB}) == IoPolicy::kRead);
  CHECK(choose_io_policy({true, 1, 0}) == IoPolicy::kRead);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  CHECK(choose_io_policy({true, kMax / 2, kMax}) == IoPolicy::kWarmAndMap);
  CHECK(choose_io_policy({true, kMax, kMax}) == IoPolicy::kRead);
}

TEST_CASE("file systems on a network or in user space are remote") {
  for (const std::uint64_t type : {0x6969U, 0x0BD00BD0U, 0x00C36400U, 0xFF534D42U, 0xFE534D42U,
                                   0x65735546U, 0x01021997U, 0x19830326U, 0x47504653U}) {
    CHECK(is_remote_type(type));
  }
  // ext4, xfs, btrfs, tmpfs, overlayfs, zfs
  for (const std::uint64_t type :
       {0xEF53U, 0x58465342U, 0x9123683EU, 0x01021994U, 0x794C7630U, 0x2FC12FC1U, 0U}) {
    CHECK_FALSE(is_remote_type(type));
  }
}

TEST_CASE("the available memory is plausible") {
  CHECK(safetensors::io::memory_available() > (std::uint64_t{16} << 20));
}

TEST_CASE("warming reads each byte of the range once and no other byte") {
  const std::uint64_t begin = 12'345;
  const std::uint64_t end = (std::uint64_t{35} << 20) + 7;
  const test::FakeSource source(std::vector<std::byte>(std::size_t{36} << 20));
  safetensors::io::warm(source, begin, end, {});
  std::uint64_t position = begin;
  for (const auto& [offset, nbytes] : source.reads()) {
    REQUIRE(offset == position);
    position += nbytes;
  }
  CHECK(position == end);
}

TEST_CASE("a loop uses the number of threads that it is given") {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  safetensors::parallel_for(
      64, kGiB,
      [&](std::size_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const std::lock_guard lock(mutex);
        seen.insert(std::this_thread::get_id());
      },
      {}, 5);
  CHECK(seen.size() == 5);
}
