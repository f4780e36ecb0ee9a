#include <doctest/doctest.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "io/new_memory.hpp"
#include "io/system.hpp"
#include "safetensors/buffer.hpp"
#include "support.hpp"

using safetensors::Buffer;

TEST_CASE("buffers of any size are aligned and writable") {
  constexpr std::size_t kMega = std::size_t{1} << 20;
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{63}, std::size_t{64}, std::size_t{4097}, 4 * kMega - 1,
        4 * kMega, 4 * kMega + 1, 6 * kMega + 4096, 9 * kMega - 3}) {
    const Buffer buffer(size);
    CAPTURE(size);
    REQUIRE(buffer.size() == size);
    REQUIRE(buffer.bytes().size() == size);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    std::memset(buffer.data(), 0xA5, size);
    CHECK(buffer.data()[0] == std::byte{0xA5});
    CHECK(buffer.data()[size - 1] == std::byte{0xA5});
  }
}

TEST_CASE("an empty buffer") {
  const Buffer none;
  CHECK(none.size() == 0);
  CHECK(none.bytes().empty());
  const Buffer zero(0);
  CHECK(zero.size() == 0);
}

TEST_CASE("moving moves the memory") {
  for (const std::size_t size : {std::size_t{10}, std::size_t{5} << 20}) {
    Buffer first(size);
    std::byte* const data = first.data();
    data[size - 1] = std::byte{7};
    Buffer second(std::move(first));
    CHECK(second.data() == data);
    CHECK(first.data() == nullptr);  // NOLINT: that it is empty is the point
    CHECK(first.size() == 0);
    Buffer third(3);
    third = std::move(second);
    CHECK(third.data() == data);
    CHECK(third.size() == size);
    CHECK(second.size() == 0);  // NOLINT
    Buffer& same = third;
    third = std::move(same);
    CHECK(third.data() == data);
    CHECK(third.data()[size - 1] == std::byte{7});
  }
}

TEST_CASE("more memory than exists is an Error") {
  if constexpr (sizeof(std::size_t) == 8) {
    for (const std::size_t size :
         {std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max() / 2,
          std::size_t{1} << 62, std::size_t{1} << 50}) {
      CHECK(test::outcome_of([&] { const Buffer buffer(size); }) == "kOutOfMemory");
    }
  }
}

TEST_CASE("pages are provided once, and keep what is in them") {
  const Buffer buffer(6U << 20);
  const std::span<std::byte> all = buffer.bytes();
  safetensors::io::provide_pages(all.subspan(5000, 3U << 20));
#if defined(__linux__)
  const std::size_t page = safetensors::io::page_size();
  std::vector<unsigned char> exist(all.size() / page);
  REQUIRE(::mincore(all.data(), all.size(), exist.data()) == 0);
  CHECK((exist[5000 / page + 1] & 1) == 1);
  CHECK((exist[(5000 + (3U << 20)) / page - 1] & 1) == 1);
  CHECK((exist.back() & 1) == 0);
#endif
  std::memset(all.data(), 7, all.size());
  for (const std::size_t skip : {0U, 1U, 4095U, 4096U, 4097U}) {
    safetensors::io::provide_pages(all.subspan(skip));
    safetensors::io::provide_pages(all.subspan(skip, 5000));
  }
  safetensors::io::provide_pages({});
  CHECK(std::ranges::all_of(all, [](std::byte byte) { return byte == std::byte{7}; }));
}
