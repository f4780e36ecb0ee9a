#include <doctest/doctest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "io/file_source.hpp"
#include "safetensors/fill_page_cache.hpp"
#include "safetensors/save.hpp"
#include "support.hpp"

using safetensors::Backend;
using safetensors::ByteRuns;
using safetensors::CachedRead;
using safetensors::Dtype;
using safetensors::fill_page_cache;
using safetensors::Index;
using safetensors::SafeOpen;

namespace {

constexpr std::uint64_t kMb = std::uint64_t{1} << 20;

using Calls = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

/// Writes a file of three tensors: 6 MB, 100 bytes, 12 MB.
void write_model(const test::fs::path& path) {
  const std::vector<test::OwnTensor> tensors = {
      test::tensor_of("a", Dtype::kU8, {6, kMb}, 1), test::tensor_of("b", Dtype::kU8, {100}, 2),
      test::tensor_of("c", Dtype::kU8, {12 * 1024, 1024}, 3)};
  safetensors::save_file(test::views_of(tensors), path);
}

std::vector<CachedRead> all_of(const SafeOpen& file) {
  std::vector<CachedRead> reads;
  for (const safetensors::TensorInfo& info : file.header().tensors()) {
    reads.push_back({&file, &info});
  }
  return reads;
}

/// Fills, checks the order of the calls of `progress`, and returns them.
Calls fill(std::span<const CachedRead> reads) {
  Calls calls;
  fill_page_cache(reads, {}, [&](std::uint64_t done, std::uint64_t total) {
    if (!calls.empty()) CHECK(calls.back() < std::pair(done, total));
    calls.emplace_back(done, total);
    CHECK(total == calls.front().second);
  });
  REQUIRE(!calls.empty());
  CHECK(calls.back().first == calls.back().second);
  return calls;
}

}  // namespace

TEST_CASE("filling the page cache counts the bytes of tensors") {
  const test::TempDir folder;
  write_model(folder / "model");
  for (const Backend backend : {Backend::kMmap, Backend::kPread}) {
    const SafeOpen file(folder / "model", {.backend = backend});
    const std::vector<CachedRead> reads = all_of(file);
    CHECK(fill(reads).back().second == 18 * kMb + 100);
    CHECK(fill(std::span(reads).first(1)).back().second == 6 * kMb);
    CHECK(fill({}).back().second == 0);
  }
}

TEST_CASE("parts count without the gaps between their runs") {
  const test::TempDir folder;
  write_model(folder / "model");
  const SafeOpen file(folder / "model", {.backend = Backend::kMmap});
  const auto nbytes_of = [&](std::string_view name, std::vector<Index> indices) {
    const ByteRuns runs = file.select_part(file.at(name), indices).runs;
    const CachedRead read{&file, &file.at(name), {&runs, 1}};
    return fill({&read, 1}).back().second;
  };
  CHECK(nbytes_of("c", {Index::slice(10, 20)}) == 10 * 1024);
  CHECK(nbytes_of("c", {Index::all(), Index::slice(0, 3)}) == 12 * 1024 * 3);
  CHECK(nbytes_of("a", {Index::slice(0, 6, 2)}) == 3 * kMb);
  CHECK(nbytes_of("a", {Index::slice(2, 2)}) == 0);
}

TEST_CASE("what lies outside of its file is refused") {
  const test::TempDir folder;
  write_model(folder / "model");
  const SafeOpen file(folder / "model", {.backend = Backend::kMmap});
  const ByteRuns runs{.first = 90, .run_nbytes = 11, .loops = {}};
  const CachedRead part{&file, &file.at("b"), {&runs, 1}};
  CHECK(test::outcome_of([&] { fill_page_cache({&part, 1}); }) == "kInvalidArgument");
  safetensors::TensorInfo info = file.at("b");
  info.end = 100 * kMb;
  const CachedRead other{&file, &info};
  CHECK(test::outcome_of([&] { fill_page_cache({&other, 1}); }) == "kInvalidArgument");
}

TEST_CASE("what progress and interrupt throw comes out of filling") {
  const test::TempDir folder;
  write_model(folder / "model");
  const SafeOpen file(folder / "model", {.backend = Backend::kMmap});
  const std::vector<CachedRead> reads = all_of(file);
  const auto stop = [](std::uint64_t, std::uint64_t) { throw std::domain_error("stopped"); };
  CHECK_THROWS_AS(fill_page_cache(reads, {}, stop), std::domain_error);
}

#if defined(__linux__)
TEST_CASE("a file that is not cached is read, also when it was renamed over") {
  const test::TempDir folder;
  write_model(folder / "model");
  const SafeOpen file(folder / "model", {.backend = Backend::kMmap});
  const auto source = safetensors::FileSource::open(folder / "model");
  test::fs::rename(folder / "model", folder / "old");
  test::write_text(folder / "model", "another file");
  fill(all_of(file));
  CHECK(source->cached_nbytes() == source->size());
}

TEST_CASE("a file that was truncated is an error") {
  const test::TempDir folder;
  write_model(folder / "model");
  const SafeOpen file(folder / "model", {.backend = Backend::kMmap});
  test::fs::resize_file(folder / "model", 10 * kMb);
  CHECK(test::outcome_of([&] { fill_page_cache(all_of(file)); }) == "kFileChanged");
}
#endif
