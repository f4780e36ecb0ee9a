#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "io/reopened_source.hpp"
#include "safetensors/safe_open.hpp"
#include "support.hpp"

using safetensors::Backend;
using safetensors::FileId;
using safetensors::FileSource;
using safetensors::SafeOpen;
using safetensors::io::ReopenedSource;

namespace {

std::string read_from(const safetensors::ByteSource& source, std::uint64_t at, std::size_t count) {
  std::vector<std::byte> bytes(count);
  source.read_at(at, bytes);
  return test::text_of(bytes);
}

/// Replaces a file by another.
void replace(const test::fs::path& path, const std::string& text) {
  test::write_text(path.string() + ".new", text);
  test::fs::rename(path.string() + ".new", path);
}

}  // namespace

TEST_CASE("each read opens the file, keep_open() once") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  test::write_text(path, "0123456789");
  const FileId id = FileSource::open(path)->id();
  for (const bool is_direct : {false, true}) {
    const ReopenedSource source(path, id, is_direct, nullptr);
    CHECK(source.size() == 10);
    CHECK(read_from(source, 3, 4) == "3456");
    CHECK(test::outcome_of([&] { (void)read_from(source, 7, 4); }) == "kInvalidArgument");
    const auto open = source.keep_open();
    REQUIRE(open);
    CHECK(open->keep_open() == nullptr);
    CHECK(read_from(*open, 6, 4) == "6789");
  }
}

TEST_CASE("a replaced or removed file is an error") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  test::write_text(path, "0123456789");
  const ReopenedSource source(path, FileSource::open(path)->id(), false, nullptr);
  replace(path, "9876543210");
  const auto outcome = [&] { return test::outcome_of([&] { (void)read_from(source, 0, 1); }); };
  CHECK(outcome() == "kFileChanged");
  test::fs::remove(path);
  CHECK(outcome() == "kIo");
  CHECK(source.concurrency() == 0);
}

TEST_CASE("a file of tensors that is not kept open") {
  const test::TempDir folder;
  const test::fs::path path = folder / "model.safetensors";
  const std::vector<test::OwnTensor> tensors = {test::tensor_of("a", safetensors::Dtype::kF32, {9}),
                                                test::tensor_of("b", safetensors::Dtype::kU8, {5})};
  safetensors::save_file(test::views_of(tensors), path);
  for (const Backend backend : {Backend::kPread, Backend::kDirect}) {
    const SafeOpen file(path, {.backend = backend, .keeps_file_open = false});
    CHECK(file.get_tensors().size() == 2);
    const safetensors::TensorView b = file.get_tensor("b");
    CHECK(std::ranges::equal(b.bytes(), tensors[1].bytes));
    const safetensors::Index some[] = {safetensors::Index::slice({}, {}, 2)};
    CHECK(file.get_slice("a", some).nbytes() == 20);
    safetensors::save_file(test::views_of(tensors), path);
    CHECK(test::outcome_of([&] { (void)file.get_tensors(); }) == "kFileChanged");
    CHECK(test::outcome_of([&] { (void)file.get_slice("a", some); }) == "kFileChanged");
  }
}
