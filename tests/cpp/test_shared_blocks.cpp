// Which bytes of a copy two files can share.
#include <doctest/doctest.h>

#include <cstdint>

#include "safetensors/detail/shared_blocks.hpp"
#include "support.hpp"

using safetensors::kBlockSize;
using safetensors::detail::kLeastShared;
using safetensors::detail::shared_blocks;

TEST_CASE("what is shared is whole blocks of both files, as many as there are") {
  constexpr std::uint64_t kOffsets[] = {0, 1, 8, 4088, 4095, 4096, 5000, 9096};
  for (const std::uint64_t begin : kOffsets) {
    for (const std::uint64_t to : kOffsets) {
      for (std::uint64_t nbytes = 0; nbytes < kLeastShared + 3 * kBlockSize; nbytes += 511) {
        std::uint64_t first = begin;
        while (first % kBlockSize != 0) ++first;
        std::uint64_t end = begin + nbytes;
        while (end % kBlockSize != 0) --end;
        const bool is_shared = begin % kBlockSize == to % kBlockSize && end >= first + kLeastShared;
        const auto found = shared_blocks(begin, nbytes, to);
        CHECK(found.nbytes == (is_shared ? end - first : 0));
        CHECK(found.skip == (is_shared ? first - begin : 0));
      }
    }
  }
}

TEST_CASE("sizes near the largest do not wrap") {
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  CHECK(shared_blocks(kAll, 0, kAll).nbytes == 0);
  CHECK(shared_blocks(kAll, 1, kAll).nbytes == 0);
  CHECK(shared_blocks(0, kAll, 0).nbytes == kAll - kBlockSize + 1);
  CHECK(shared_blocks(1, kAll, kBlockSize + 1).skip == kBlockSize - 1);
}
