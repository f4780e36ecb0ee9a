// Reading past the page cache, and the fallback if the system refuses.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "io/posix/direct_source.hpp"
#include "safetensors/safe_open.hpp"
#include "support.hpp"

using safetensors::Backend;
using safetensors::ByteSource;
using safetensors::FileSource;
using safetensors::SafeOpen;

namespace {

constexpr std::size_t kSlot = std::size_t{4} << 20;

/// Returns bytes that depend on their position.
std::string numbered(std::size_t nbytes) {
  std::string bytes(nbytes, '\0');
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<char>(i * 7 + i / 4096);
  return bytes;
}

void check_reads(const ByteSource& source, const std::string& bytes) {
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, kSlot - 1,
                                   kSlot + 77, bytes.size() - 200'000, bytes.size() - 1}) {
    for (const std::size_t wanted : {std::size_t{1}, std::size_t{200'000}, kSlot, 2 * kSlot + 5}) {
      const std::size_t nbytes = std::min(wanted, bytes.size() - offset);
      std::vector<std::byte> to(nbytes);
      source.read_at(offset, to);
      CAPTURE(offset);
      CAPTURE(nbytes);
      CHECK(std::memcmp(to.data(), bytes.data() + offset, nbytes) == 0);
    }
  }
}

}  // namespace

TEST_CASE("any part of a file can be read past the page cache") {
  const test::TempDir folder;
  const std::string bytes = numbered(3 * kSlot + 1234);
  const auto path = folder / "file";
  test::write_text(path, bytes);
  auto file = FileSource::open(path);
  const std::unique_ptr<ByteSource> direct = FileSource::make_direct(file);
  if (!direct) {
    MESSAGE("skipped: this file system has no direct reads");
    return;
  }
  CHECK(file == nullptr);
  CHECK(direct->size() == bytes.size());
  check_reads(*direct, bytes);
}

TEST_CASE("reads that O_DIRECT refuses go through the page cache") {
  const test::TempDir folder;
  const std::string bytes = numbered(3 * kSlot + 1234);
  const auto path = folder / "file";
  test::write_text(path, bytes);
  // Not open for reading: every direct read fails.
  safetensors::io::Fd refusing(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(refusing.is_open());
  const safetensors::io::DirectSource direct(FileSource::open(path), std::move(refusing));
  check_reads(direct, bytes);
}

TEST_CASE("direct reads notice a truncated file") {
  const test::TempDir folder;
  const auto path = folder / "file";
  test::write_text(path, numbered(2 * kSlot));
  auto file = FileSource::open(path);
  std::unique_ptr<ByteSource> source = FileSource::make_direct(file);
  if (!source) source = std::move(file);
  REQUIRE(::truncate(path.c_str(), kSlot + 10) == 0);
  std::vector<std::byte> to(2 * kSlot);
  CHECK(test::outcome_of([&] { source->read_at(0, to); }) == "kFileChanged");
}

TEST_CASE("all backends give the same bytes") {
  const test::TempDir folder;
  const std::string data = numbered(2 * kSlot + 4096 + 3);
  const std::size_t first = 5;
  const std::string json = R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                           R"("b":{"dtype":"U8","shape":[)" +
                           std::to_string(data.size() - first) + R"(],"data_offsets":[5,)" +
                           std::to_string(data.size()) + "]}}";
  const auto path = folder / "model.safetensors";
  test::write_text(path, test::file_of(json) + data);
  for (const Backend backend :
       {Backend::kMmap, Backend::kPread, Backend::kAuto, Backend::kDirect}) {
    const SafeOpen file(path, {backend});
    CHECK(file.backend() != Backend::kAuto);
    file.warm();
    const auto all = file.get_tensors();
    REQUIRE(all.size() == 2);
    CHECK(std::memcmp(all[0].bytes().data(), data.data(), first) == 0);
    CHECK(std::memcmp(all[1].bytes().data(), data.data() + first, data.size() - first) == 0);
    const auto b = file.get_tensor("b");
    CHECK(std::ranges::equal(b.bytes(), all[1].bytes()));
  }
}
