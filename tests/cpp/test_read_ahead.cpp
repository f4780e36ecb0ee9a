#include <doctest/doctest.h>

#include <cstdint>

#include "io/read_ahead.hpp"

#if defined(__linux__)
#include <chrono>
#include <functional>
#include <thread>

#include "io/file_source.hpp"
#include "posix_support.hpp"
#endif

using safetensors::io::read_ahead_limit;

namespace {
constexpr std::uint64_t kMb = std::uint64_t{1} << 20;
}

TEST_CASE("nothing is read ahead of a process that has touched little") {
  CHECK(read_ahead_limit(0, 0, UINT64_MAX) == 0);
  CHECK(read_ahead_limit(4 * kMb - 1, 1, UINT64_MAX) == 0);
  CHECK(read_ahead_limit(100 * kMb - 1, 800 * kMb, UINT64_MAX) == 0);
  CHECK(read_ahead_limit(256 * kMb - 1, 80'000 * kMb, UINT64_MAX) == 0);
}

TEST_CASE("what is read ahead grows with what is touched") {
  CHECK(read_ahead_limit(4 * kMb, 1, UINT64_MAX) == 8 * kMb);
  CHECK(read_ahead_limit(100 * kMb, 800 * kMb, UINT64_MAX) == 164 * kMb);
  CHECK(read_ahead_limit(256 * kMb, 80'000 * kMb, UINT64_MAX) == 320 * kMb);
}

TEST_CASE("files that memory has no room for are not read ahead") {
  CHECK(read_ahead_limit(100 * kMb, 800 * kMb, 800 * kMb) == 164 * kMb);
  CHECK(read_ahead_limit(100 * kMb, 800 * kMb, 800 * kMb - 1) == 0);
}

#if defined(__linux__) && !defined(TEST_SANITIZED)
namespace {

constexpr std::uint64_t kNbytes = 512 * kMb;

/// Makes a sparse file of which no page is cached. Returns an empty path if all files are in
/// memory.
std::unique_ptr<safetensors::FileSource> make_cold(const test::fs::path& path) {
  test::write_text(path, "");
  test::fs::resize_file(path, kNbytes);
  auto file = safetensors::FileSource::open(path);
  return file->cached_nbytes() == 0 ? std::move(file) : nullptr;
}

void touch(const safetensors::MappedFile& file, std::uint64_t begin, std::uint64_t end) {
  for (std::uint64_t at = begin; at < end; at += 4096) {
    static_cast<void>(*static_cast<volatile std::byte*>(&file.bytes()[at]));
  }
}

bool is_soon(const std::function<bool()>& is_so) {
  for (int i = 0; i < 1000; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST_CASE("a file is read ahead when it is touched, as far as that goes") {
  const test::TempDir folder;
  const auto file = make_cold(folder / "file");
  if (!file) return;
  auto mapping = file->map();
  REQUIRE(mapping);
  safetensors::io::read_ahead(mapping, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(file->cached_nbytes() == 0);
  touch(*mapping, 0, 65 * kMb);
  // The kernel's own reading ahead goes some megabytes beyond.
  CHECK(is_soon([&] { return file->cached_nbytes() >= 112 * kMb; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(file->cached_nbytes() <= 200 * kMb);
  touch(*mapping, 65 * kMb, kNbytes);
  CHECK(is_soon([&] { return file->cached_nbytes() == kNbytes; }));
}

TEST_CASE("a file is read ahead after others came and went") {
  const test::TempDir folder;
  for (const char* const name : {"one", "two", "three"}) {
    CAPTURE(name);
    const auto file = make_cold(folder / name);
    if (!file) return;
    const auto mapping = file->map();
    REQUIRE(mapping);
    safetensors::io::read_ahead(mapping, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    CHECK(file->cached_nbytes() == 0);
    touch(*mapping, 0, 80 * kMb);
    CHECK(is_soon([&] { return file->cached_nbytes() >= 112 * kMb; }));
  }
}

TEST_CASE("the mapping goes with its last owner") {
  const test::TempDir folder;
  const auto file = make_cold(folder / "file");
  if (!file) return;
  auto mapping = file->map();
  REQUIRE(mapping);
  safetensors::io::read_ahead(mapping, 0);
  touch(*mapping, 0, 80 * kMb);
  const std::weak_ptr<const safetensors::MappedFile> left = mapping;
  mapping.reset();
  CHECK(is_soon([&] { return left.expired(); }));
}

TEST_CASE("a forked process reads ahead by a thread of its own") {
  const test::TempDir folder;
  const auto file = make_cold(folder / "file");
  if (!file) return;
  const auto mapping = file->map();
  safetensors::io::read_ahead(mapping, 0);
  CHECK(test::in_child([&] {
          safetensors::io::read_ahead(mapping, 0);
          touch(*mapping, 0, 65 * kMb);
          return is_soon([&] { return file->cached_nbytes() >= 112 * kMb; }) ? 0 : 1;
        }) == 0);
}
#endif
