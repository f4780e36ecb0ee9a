// Opening files of any format.
#include <doctest/doctest.h>

#include <string>

#include "safetensors/file_bytes.hpp"
#include "support.hpp"

namespace fs = std::filesystem;
using safetensors::ErrorCode;
using safetensors::FileBytes;
using safetensors::open_bytes;

TEST_CASE("any regular file is opened, read and mapped") {
  const test::TempDir folder;
  const fs::path path = folder / "any.bin";
  test::write_text(path, "not a header");
  for (const bool map : {true, false}) {
    const FileBytes file = open_bytes(path, map);
    REQUIRE(file.source->size() == 12);
    std::string text(6, ' ');
    file.source->read_at(6, std::as_writable_bytes(std::span(text)));
    CHECK(text == "header");
    REQUIRE((file.mapping != nullptr) == map);
    if (map) {
      CHECK(static_cast<char>(file.mapping->bytes()[4]) == 'a');
      CHECK_FALSE(safetensors::is_truncated(file.mapping->bytes()));
    }
  }
}

TEST_CASE("an empty file has no mapping") {
  const test::TempDir folder;
  test::write_text(folder / "empty", "");
  const FileBytes file = open_bytes(folder / "empty");
  CHECK(file.source->size() == 0);
  CHECK(file.mapping == nullptr);
}

TEST_CASE("reading and mapping keep the file after its path names another") {
  const test::TempDir folder;
  test::write_text(folder / "a", "old bytes");
  test::write_text(folder / "b", "new and longer");
  const FileBytes file = open_bytes(folder / "a");
  fs::rename(folder / "a", folder / "old");  // Windows renames open files, but not over one
  fs::rename(folder / "b", folder / "a");
  char first = 0;
  file.source->read_at(0, std::as_writable_bytes(std::span(&first, 1)));
  CHECK(first == 'o');
  CHECK(static_cast<char>(file.mapping->bytes()[0]) == 'o');
}

TEST_CASE("a missing file and a folder are refused") {
  const test::TempDir folder;
  const auto code_of = [](const fs::path& path) {
    try {
      (void)open_bytes(path);
    } catch (const safetensors::Error& error) {
      return error.code();
    }
    return ErrorCode{};
  };
  CHECK(code_of(folder / "absent") == ErrorCode::kIo);
  CHECK(code_of(folder.path()) == ErrorCode::kNotRegularFile);
}
