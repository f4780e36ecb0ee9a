// Reading files of the kernel, and parsing their tokens.
#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

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
