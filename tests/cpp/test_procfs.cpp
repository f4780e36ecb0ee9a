// Reading files of the kernel, and parsing their tokens.
#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "io/posix/huge_pages.hpp"
#include "io/posix/procfs.hpp"
#include "support.hpp"

using namespace safetensors;

TEST_CASE("a file is read whole") {
  const test::TempDir dir;
  const test::fs::path path = dir / "text";
  for (const std::size_t size : {0U, 1U, 65'536U, 300'000U}) {
    const std::string text(size, 'x');
    std::ofstream(path) << text;
    CHECK(io::read_kernel_file(path.c_str()) == text);
  }
  // Its size is said to be 0.
  std::ostringstream expected;
  if (std::ifstream file("/proc/self/cmdline"); expected << file.rdbuf()) {
    CHECK(io::read_kernel_file("/proc/self/cmdline") == expected.str());
  }
  CHECK_FALSE(io::read_kernel_file("/no/such/file"));
  CHECK_FALSE(io::read_kernel_file("/"));
}

TEST_CASE("words") {
  std::string_view text = " one\t two\n\nthree ";
  CHECK(io::next_token(text) == "one");
  CHECK(io::next_token(text) == "two");
  CHECK(io::next_token(text) == "three");
  CHECK(io::next_token(text).empty());
  CHECK(io::next_token(text).empty());
}

TEST_CASE("free huge pages are counted in blocks of their size and larger") {
  constexpr std::size_t kPage = 4096;
  const std::string_view two_zones =
      "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1     "
      " 1      3 \n"
      "Node 0, zone   Normal  10247   5957   1292    976   2289   4671   2745   1371    809    "
      "561   2885 \n";
  CHECK(io::free_huge_pages(two_zones, kPage) == 1 + 2 * 3 + 561 + 2 * 2885);
  // Of pages of 64 KiB, 32 are a huge page.
  CHECK(io::free_huge_pages("Node 0, zone Normal 9 9 9 9 9 5 7", 65536) == 5 + 2 * 7);
  CHECK(io::free_huge_pages("", kPage) == 0);
  CHECK(io::free_huge_pages("Node 0, zone Normal\n\n", kPage) == 0);
  CHECK(io::free_huge_pages("Node 0, zone Normal 1 1 1 1 1 1 1 1 1 x 1", kPage) == 2);
}

TEST_CASE("no more huge pages are taken than are free") {
  constexpr std::uint64_t kAll = std::uint64_t{1} << 60;
  const std::uint64_t taken = io::take_huge_pages(kAll);
  CHECK(taken < kAll);
  CHECK(io::take_huge_pages(0) == 0);
}
