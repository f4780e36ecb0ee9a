#include <doctest/doctest.h>

#include <cstdint>

#include "io/read_ahead.hpp"

#if defined(__linux__)
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "io/file_source.hpp"
#include "posix_support.hpp"
#endif

using safetensors::io::read_ahead_limit;

namespace {
constexpr std::uint64_t kMb = std::uint64_t{1} << 20;
}

TEST_CASE("nothing is read ahead while little is touched") {
  CHECK(read_ahead_limit(0, 0, UINT64_MAX) == 0);
  CHECK(read_ahead_limit(4 * kMb - 1, 1, UINT64_MAX) == 0);
  CHECK(read_ahead_limit(100 * kMb - 1, 800 * kMb, UINT64_MAX) == 0);
  CHECK(read_ahead_limit(256 * kMb - 1, 80'000 * kMb, UINT64_MAX) == 0);
}

TEST_CASE("read-ahead grows with the touched part") {
  CHECK(read_ahead_limit(4 * kMb, 1, UINT64_MAX) == 8 * kMb);
  CHECK(read_ahead_limit(100 * kMb, 800 * kMb, UINT64_MAX) == 164 * kMb);
  CHECK(read_ahead_limit(256 * kMb, 80'000 * kMb, UINT64_MAX) == 320 * kMb);
}

TEST_CASE("files larger than free memory are not read ahead") {
  CHECK(read_ahead_limit(100 * kMb, 720 * kMb, 800 * kMb) == 164 * kMb);
  CHECK(read_ahead_limit(100 * kMb, 720 * kMb, 800 * kMb - 10) == 0);
}

#if defined(__linux__) && !defined(TEST_SANITIZED)
namespace {

constexpr std::uint64_t kNbytes = 512 * kMb;

struct File {
  std::unique_ptr<safetensors::FileSource> source;
  std::shared_ptr<const safetensors::MappedFile> mapping;
};

/// Makes a sparse file, maps it, and starts read_ahead(), which must not read before it is touched.
/// Returns nothing where new files are cached, such as in memory.
///
/// What the process touches of its own program counts, too, so the first tries may read.
std::optional<File> start_read_ahead(const test::fs::path& path) {
  constexpr int kTries = 10;
  for (int i = 1;; ++i) {
    test::fs::remove(path);
    test::write_text(path, "");
    test::fs::resize_file(path, kNbytes);
    auto source = safetensors::FileSource::open(path);
    if (source->cached_nbytes() != 0) return std::nullopt;
    auto mapping = source->map();
    REQUIRE(mapping);
    safetensors::io::read_ahead(mapping, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (i < kTries && source->cached_nbytes() != 0) continue;
    CHECK(source->cached_nbytes() == 0);
    return File{std::move(source), std::move(mapping)};
  }
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

TEST_CASE("a file is read ahead of the touched part, up to a limit") {
  const test::TempDir folder;
  const auto file = start_read_ahead(folder / "file");
  if (!file) return;
  touch(*file->mapping, 0, 65 * kMb);
  // The kernel's own reading ahead goes some megabytes beyond.
  CHECK(is_soon([&] { return file->source->cached_nbytes() >= 112 * kMb; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(file->source->cached_nbytes() <= 200 * kMb);
  touch(*file->mapping, 65 * kMb, kNbytes);
  CHECK(is_soon([&] { return file->source->cached_nbytes() == kNbytes; }));
}

TEST_CASE("files are read ahead one after another") {
  const test::TempDir folder;
  for (const char* const name : {"one", "two", "three"}) {
    CAPTURE(name);
    const auto file = start_read_ahead(folder / name);
    if (!file) return;
    touch(*file->mapping, 0, 80 * kMb);
    CHECK(is_soon([&] { return file->source->cached_nbytes() >= 112 * kMb; }));
  }
}

TEST_CASE("read-ahead does not keep a mapping") {
  const test::TempDir folder;
  auto file = start_read_ahead(folder / "file");
  if (!file) return;
  touch(*file->mapping, 0, 80 * kMb);
  const std::weak_ptr<const safetensors::MappedFile> left = file->mapping;
  file->mapping.reset();
  CHECK(is_soon([&] { return left.expired(); }));
}

TEST_CASE("a forked process reads ahead with its own thread") {
  const test::TempDir folder;
  const auto file = start_read_ahead(folder / "file");
  if (!file) return;
  CHECK(test::in_child([&] {
          safetensors::io::read_ahead(file->mapping, 0);
          touch(*file->mapping, 0, 65 * kMb);
          return is_soon([&] { return file->source->cached_nbytes() >= 112 * kMb; }) ? 0 : 1;
        }) == 0);
}
#endif
