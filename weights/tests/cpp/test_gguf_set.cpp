// Opening GGUF files and split models.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "fake_source.hpp"
#include "gguf/set.hpp"
#include "gguf_support.hpp"

namespace fs = std::filesystem;
using safetensors::weights::Files;
using safetensors::weights::find_gguf;
using safetensors::weights::gguf_models;
using safetensors::weights::GgufFile;
using safetensors::weights::GgufOptions;
using safetensors::weights::GgufSet;
using safetensors::weights::GgufSource;
using safetensors::weights::StoredBytes;
using test::code_of;
using test::le;
using test::MetaType;

namespace {

std::string part_name(unsigned number, unsigned count, const std::string& stem = "m") {
  const auto five = [](unsigned value) {
    const std::string digits = std::to_string(value);
    return std::string(5 - digits.size(), '0') + digits;
  };
  return stem + "-" + five(number) + "-of-" + five(count) + ".gguf";
}

/// The keys of one part about its model, and the name of its only tensor.
struct Part {
  std::uint16_t no;
  std::uint16_t count;
  std::int32_t tensors;
  std::string tensor;

  void write(const fs::path& path) const {
    test::GgufFileText file;
    file.item("split.no", MetaType::u16, le(no));
    file.item("split.count", MetaType::u16, le(count));
    file.item("split.tensors.count", MetaType::i32, le(tensors));
    file.tensor(tensor, {8}, 0, 0);
    file.data = std::string(32, static_cast<char>('0' + no));
    test::write_text(path, file.text());
  }
};

/// A directory with three parts, one of them changed.
struct Parts {
  test::TempDir folder;
  std::vector<Part> parts = {{0, 3, 3, "a"}, {1, 3, 3, "b"}, {2, 3, 3, "c"}};

  void write() const {
    for (unsigned i = 0; i < 3; ++i) parts[i].write(folder / part_name(i + 1, 3));
  }
  [[nodiscard]] std::string outcome(unsigned opened) const {
    return code_of([&] { (void)GgufSet(Files(), folder / part_name(opened, 3), {}); });
  }
};

std::string first_bytes(const GgufSource& source, const GgufOptions& options) {
  const StoredBytes all = source.bytes();
  CHECK(all.is_view == options.mmap);
  CHECK(all.bytes.size() == source.tensor->nbytes);
  std::string copy(source.tensor->nbytes, ' ');
  source.read(0, std::as_writable_bytes(std::span(copy)));
  CHECK(copy == test::text_of(all.bytes));
  if (copy.size() > 3) {
    CHECK(test::text_of(source.bytes(1, 3).bytes) == copy.substr(1, 2));
    std::string part(2, ' ');
    source.read(1, std::as_writable_bytes(std::span(part)));
    CHECK(part == copy.substr(1, 2));
  }
  return copy;
}

}  // namespace

TEST_CASE("a split model is the whole one, whichever part is opened") {
  const fs::path folder = test::weights_data() / "gguf";
  for (const bool mmap : {true, false}) {
    const GgufOptions options{.mmap = mmap};
    const GgufSet whole(Files(), folder / "llama_q4_0.gguf", options);
    CHECK(whole.files().size() == 1);
    CHECK(whole.find("blk.0.attn_k") == nullptr);
    for (unsigned number = 1; number <= 3; ++number) {
      const GgufSet set(Files(), folder / part_name(number, 3, "llama_split_q4_0"), options);
      REQUIRE(set.files().size() == 3);
      CHECK(set.tensors().size() == whole.tensors().size());
      REQUIRE(set.metadata().find("llama.block_count") != nullptr);
      for (const GgufSource& expected : whole.tensors()) {
        CAPTURE(expected.tensor->name);
        const GgufSource* const found = set.find(expected.tensor->name);
        REQUIRE(found != nullptr);
        CHECK(std::ranges::equal(found->tensor->shape(), expected.tensor->shape()));
        CHECK(found->tensor->type == expected.tensor->type);
        CHECK(first_bytes(*found, options) == first_bytes(expected, options));
      }
    }
  }
}

TEST_CASE("parts that do not belong together are refused") {
  Parts set;
  set.write();
  for (unsigned opened = 1; opened <= 3; ++opened) CHECK(set.outcome(opened) == "ok");

  const auto outcome_with = [&](unsigned index, const Part& part) {
    const Part good = set.parts[index];
    set.parts[index] = part;
    set.write();
    const std::string one = set.outcome(1);
    CHECK(set.outcome(2) == one);
    CHECK(set.outcome(3) == one);
    set.parts[index] = good;
    set.write();
    return one;
  };
  CHECK(outcome_with(1, {2, 3, 3, "b"}) == "config");  // another number
  CHECK(outcome_with(0, {1, 3, 3, "a"}) == "config");
  CHECK(outcome_with(2, {2, 4, 3, "c"}) == "config");     // another count
  CHECK(outcome_with(1, {1, 3, 4, "b"}) == "config");     // another total
  CHECK(outcome_with(1, {1, 3, -3, "b"}) == "config");    // the key is absent
  CHECK(outcome_with(2, {2, 3, 3, "a"}) == "duplicate");  // a tensor in two parts
  CHECK(set.outcome(1) == "ok");

  set.parts.assign({{0, 3, 9, "a"}, {1, 3, 9, "b"}, {2, 3, 9, "c"}});
  set.write();
  CHECK(set.outcome(1) == "config");  // the parts agree on a wrong count
}

TEST_CASE("a part that is missing is named") {
  Parts set;
  set.write();
  fs::remove(set.folder / part_name(2, 3));
  CHECK(set.outcome(1) == "missing_shard");
  CHECK(set.outcome(3) == "missing_shard");
  try {
    (void)GgufSet(Files(), set.folder / part_name(1, 3), {});
  } catch (const safetensors::weights::WeightsError& error) {
    CHECK(error.path() == set.folder / part_name(2, 3));
    CHECK(static_cast<const safetensors::Error&>(error).code() ==
          safetensors::ErrorCode::kIncompleteModel);
    CHECK(std::string(error.what()).find("part 2 of 3") != std::string::npos);
  }
  // A part whose name has no number.
  fs::rename(set.folder / part_name(1, 3), set.folder / "renamed.gguf");
  CHECK(code_of([&] { (void)GgufSet(Files(), set.folder / "renamed.gguf", {}); }) ==
        "missing_shard");
  fs::rename(set.folder / "renamed.gguf", set.folder / part_name(1, 2));
  CHECK(code_of([&] { (void)GgufSet(Files(), set.folder / part_name(1, 2), {}); }) == "config");
  fs::rename(set.folder / part_name(1, 2), set.folder / part_name(0, 3));
  CHECK(code_of([&] { (void)GgufSet(Files(), set.folder / part_name(0, 3), {}); }) == "config");
}

TEST_CASE("keys of a split model are checked") {
  const test::TempDir folder;
  const auto outcome = [&](const auto& change, const GgufOptions& options = {}) {
    const fs::path path = folder / part_name(1, 2);
    test::write_text(path, test::gguf_with(change));
    return code_of([&] { (void)GgufSet(Files(), path, options); });
  };
  CHECK(outcome([](auto&) {}) == "ok");  // the name alone does not make it a part
  CHECK(outcome([](auto& file) {
          file.item("split.count", MetaType::u16, le<std::uint16_t>(1));
        }) == "ok");
  CHECK(outcome([](auto& file) {
          file.item("split.count", MetaType::u16, le<std::uint16_t>(0));
        }) == "ok");
  CHECK(outcome([](auto& file) { file.item("split.count", MetaType::i32, le(-1)); }) == "config");
  CHECK(outcome([](auto& file) { file.item("split.count", MetaType::boolean, "\x01"); }) ==
        "config");
  CHECK(outcome([](auto& file) {
          file.item("split.count", MetaType::u16, le<std::uint16_t>(2));
        }) == "missing_shard");
  CHECK(outcome([](auto& file) { file.item("split.count", MetaType::u64, le(UINT64_MAX)); }) ==
        "limit");
  // A part without keys about a split model.
  test::write_text(folder / part_name(2, 2), test::gguf_with([](auto&) {}));
  CHECK(outcome([](auto& file) {
          file.item("split.count", MetaType::u16, le<std::uint16_t>(2));
          file.item("split.no", MetaType::u16, le<std::uint16_t>(0));
        }) == "config");
  safetensors::weights::Limits one_part;
  one_part.parts = 1;
  CHECK(outcome([](auto& file) { file.item("split.count", MetaType::u16, le<std::uint16_t>(2)); },
                {.limits = one_part}) == "limit");
}

TEST_CASE("a directory's only model is found") {
  const test::TempDir folder;
  CHECK_FALSE(find_gguf(Files(), folder.path()));
  CHECK(code_of([&] { (void)find_gguf(Files(), folder / "absent"); }) == "io");
  test::write_text(folder / "notes.txt", "");
  test::write_text(folder / "._m.gguf", "");
  fs::create_directory(folder / "folder.gguf");
  CHECK_FALSE(find_gguf(Files(), folder.path()));
  test::write_text(folder / part_name(2, 3), "");
  test::write_text(folder / part_name(1, 3), "");
  CHECK(find_gguf(Files(), folder.path()) == folder / part_name(1, 3));
  test::write_text(folder / part_name(1, 2), "");  // of another model
  CHECK(code_of([&] { (void)find_gguf(Files(), folder.path()); }) == "unsupported");
  fs::remove(folder / part_name(1, 2));
  test::write_text(folder / "other.gguf", "");
  CHECK(code_of([&] { (void)find_gguf(Files(), folder.path()); }) == "unsupported");
}

TEST_CASE("all models of a directory are listed, each once") {
  const test::TempDir folder;
  CHECK(gguf_models(Files(), folder.path()).empty());
  for (const auto& name : {part_name(2, 3), part_name(1, 3), part_name(2, 2), part_name(3, 3, "n"),
                           std::string("a.gguf"), std::string("._a.gguf"), std::string("b.gg")}) {
    test::write_text(folder / name, "");
  }
  const std::vector<fs::path> expected{folder / "a.gguf", folder / part_name(1, 3),
                                       folder / part_name(2, 2), folder / part_name(3, 3, "n")};
  CHECK(gguf_models(Files(), folder.path()) == expected);
}

TEST_CASE("bytes stay valid after their set is destroyed") {
  const fs::path path = test::weights_data() / "gguf/llama_q4_0.gguf";
  for (const bool mmap : {true, false}) {
    safetensors::weights::ModelMetadata metadata;
    StoredBytes bytes;
    std::string expected;
    {
      GgufSet set(Files(), path, {.mmap = mmap});
      metadata = set.metadata();
      const GgufSet moved = std::move(set);
      bytes = moved.tensors()[3].bytes();
      expected = first_bytes(moved.tensors()[3], {.mmap = mmap});
    }
    CHECK(test::text_of(bytes.bytes) == expected);
    CHECK(metadata.find("general.architecture")->as_string() == "llama");
  }
}

TEST_CASE("reading a file that was truncated after it was opened is an error") {
  const test::TempDir folder;
  test::GgufFileText text;
  text.tensor("t", {64 << 10}, 24, 0);
  text.data = std::string(64 << 10, 'x');
  for (const bool mmap : {true, false}) {
    test::write_text(folder / "m.gguf", text.text());
    const GgufSet set(Files(), folder / "m.gguf", {.mmap = mmap});
    std::error_code refused;
    fs::resize_file(folder / "m.gguf", 4096, refused);
    if (refused) return;  // Windows keeps mapped files whole
    std::string copy(64 << 10, ' ');
    const auto to = std::as_writable_bytes(std::span(copy));
    CHECK(code_of([&] { set.tensors()[0].read(0, to); }) == "io");
    if (!mmap) CHECK(code_of([&] { (void)set.tensors()[0].bytes(); }) == "io");
  }
}

TEST_CASE("a header is read in steps that double") {
  // The header has 1 MB. Steps double, so less than 3 MB are read.
  test::GgufFileText text;
  text.item("long", MetaType::string, test::gguf_string(std::string(1 << 20, 'x')));
  text.tensor("t", {8 << 20}, 24, 0);
  text.data = std::string(8 << 20, 'd');
  const std::string file = text.text();
  const auto bytes = test::bytes_of(file);
  test::FakeSource source({bytes.begin(), bytes.end()});
  const auto header = safetensors::weights::read_gguf_header(source, "m.gguf", {});
  CHECK(header.tensors.size() == 1);
  CHECK(header.metadata.find("long")->as_string()->size() == 1 << 20);
  CHECK(source.nbytes_read() <= 3 << 20);
  std::uint64_t position = 0;
  for (const auto& [offset, nbytes] : source.reads()) {
    CHECK(offset == position);  // reads no byte twice
    position += nbytes;
  }
  source.ends_at = 600'000;
  CHECK(test::outcome_of([&] {
          (void)safetensors::weights::read_gguf_header(source, "m.gguf", {});
        }) == "kFileChanged");
}

TEST_CASE("memory depends on the content of a file, not on its claims") {
  const test::TempDir folder;
  const fs::path path = folder / "m.gguf";
  // A sparse file of 1 TB that claims a string of half that size.
  test::write_text(path, "GGUF" + le<std::uint32_t>(3) + le<std::uint64_t>(0) +
                             le<std::uint64_t>(1) + test::gguf_string("key") +
                             le<std::uint32_t>(8) + le<std::uint64_t>(std::uint64_t{1} << 39));
  std::error_code refused;
  fs::resize_file(path, std::uint64_t{1} << 40, refused);
  if (refused) return;  // not on this file system
  CHECK(code_of([&] { (void)GgufSet(Files(), path, {}); }) == "limit");
}

TEST_CASE("a file that cannot be opened is an error of the weight layer") {
  const test::TempDir folder;
  CHECK(code_of([&] { (void)GgufSet(Files(), folder / "absent.gguf", {}); }) == "io");
  CHECK(code_of([&] { (void)GgufSet(Files(), folder.path(), {}); }) == "io");
}
