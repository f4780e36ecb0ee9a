// Text of the kernel's files: whole, word by word, number by number.
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
    CHECK(io::read_kernel_text(path.c_str()) == text);
  }
  // Its size is said to be 0.
  std::ostringstream expected;
  if (std::ifstream file("/proc/self/cmdline"); expected << file.rdbuf()) {
    CHECK(io::read_kernel_text("/proc/self/cmdline") == expected.str());
  }
  CHECK_FALSE(io::read_kernel_text("/no/such/file"));
  CHECK_FALSE(io::read_kernel_text("/"));
}

TEST_CASE("words") {
  std::string_view text = " one\t two\n\nthree ";
  CHECK(io::take_word(text) == "one");
  CHECK(io::take_word(text) == "two");
  CHECK(io::take_word(text) == "three");
  CHECK(io::take_word(text).empty());
  CHECK(io::take_word(text).empty());
}

TEST_CASE("numbers") {
  CHECK(io::number_of<std::uint64_t>("18446744073709551615") == UINT64_MAX);
  CHECK(io::number_of<std::uint64_t>("7ffc", 16) == 0x7ffc);
  for (const char* const word : {"", "max", "-1", "12kB", "18446744073709551616"}) {
    CHECK_FALSE(io::number_of<std::uint64_t>(word));
  }
}
