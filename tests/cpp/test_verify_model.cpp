// Comparing models with sums: damage, and what only the model or only the sums have.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/model.hpp"
#include "safetensors/verify.hpp"
#include "support.hpp"

using safetensors::Damage;
using safetensors::Dtype;
using safetensors::find_damage;
using safetensors::Model;
using safetensors::Sums;
using test::OwnTensor;

namespace {

using Bytes = std::vector<std::byte>;

Bytes file_with(const std::vector<OwnTensor>& tensors) {
  const safetensors::Buffer file = safetensors::serialize(test::views_of(tensors));
  return {file.bytes().begin(), file.bytes().end()};
}

/// A model in memory. Tests change its files, or the sums of what it was.
struct Files {
  std::map<std::string, Bytes> content = {
      {"one.safetensors", file_with({test::tensor_of("a", Dtype::kF32, {3 << 20}, 1),
                                     test::tensor_of("empty", Dtype::kF16, {0}, 2)})},
      {"two.safetensors", file_with({test::tensor_of("b", Dtype::kU8, {1000}, 3),
                                     test::tensor_of("c", Dtype::kU8, {10}, 4)})}};

  /// With an index, its text.
  [[nodiscard]] Model model(const std::string& index = {}) const {
    safetensors::FoundModel found;
    found.folder = "folder";
    if (!index.empty()) {
      found.index = "index.json";
      found.content = safetensors::ShardIndex::parse(index);
      found.files = found.content->files();
    } else {
      for (const auto& [name, bytes] : content) found.files.push_back(name);
    }
    return {std::move(found), [files = content](const test::fs::path& path) {
              const auto bytes = std::make_shared<const Bytes>(files.at(path.filename().string()));
              return safetensors::SafeOpen(
                  std::make_shared<safetensors::MemorySource>(*bytes, bytes), path);
            }};
  }

  /// Returns the sums of all files, and what `change` makes of the tensors before they are added.
  [[nodiscard]] Sums sums(const auto& change) const {
    Sums all;
    std::map<std::string, safetensors::TensorSums> tensors;
    std::vector<Sums> kept;
    kept.reserve(content.size());
    for (const auto& [name, bytes] : content) {
      kept.push_back(safetensors::make_sums(safetensors::MemorySource(bytes), name));
    }
    for (const Sums& each : kept) {
      const std::size_t file = all.add_file(each.files().front());
      for (std::size_t i = 0; i < each.size(); ++i) {
        safetensors::TensorSums tensor = each.tensor(i);
        tensor.file = file;
        tensors[std::string(tensor.name)] = tensor;
      }
    }
    change(tensors);
    for (auto& [name, tensor] : tensors) {
      tensor.name = name;
      all.add_tensor(tensor);
    }
    return all;
  }
  [[nodiscard]] Sums sums() const {
    return sums([](auto&) {});
  }
  void flip(const std::string& file, std::size_t from_end) {
    Bytes& bytes = content.at(file);
    bytes[bytes.size() - from_end] ^= std::byte{1};
  }
};

constexpr const char* kIndex = R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors",
    "c": "two.safetensors", "empty": "one.safetensors"}})";

std::vector<std::string> texts_of(const std::vector<Damage>& damage) {
  std::vector<std::string> texts;
  texts.reserve(damage.size());
  for (const Damage& each : damage) {
    CHECK(each.begin <= each.end);
    texts.push_back(each.file.filename().string() + ": " + text_of(each));
  }
  return texts;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a model that is as its sums say has no damage") {
  const Files files;
  const Sums sums = files.sums();
  for (const Model& model : {files.model(), files.model(kIndex)}) {
    std::uint64_t last = 0, total = 0;
    safetensors::VerifyOptions options;
    options.progress = [&](std::uint64_t done, std::uint64_t of) {
      CHECK(last <= done);
      CHECK((total == 0 || total == of));
      last = done;
      total = of;
    };
    CHECK(texts_of(find_damage(model, sums, options)).empty());
    CHECK(last == total);
    CHECK(total ==
          files.content.at("one.safetensors").size() + files.content.at("two.safetensors").size());
    safetensors::refuse_absent(model, sums);
  }
}

TEST_CASE("the ranges of all files are returned and reported, those of one file after it is read") {
  Files files;
  const Sums sums = files.sums();
  files.flip("one.safetensors", 1);         // the last of the blocks of "a"
  files.flip("one.safetensors", 12 << 20);  // and the first
  files.flip("two.safetensors", 15);
  std::vector<std::string> reported;
  safetensors::VerifyOptions options;
  options.report = [&](const Damage& damage) { reported.push_back(damage.tensor); };
  const std::vector<Damage> damage = find_damage(files.model(), sums, options);
  CHECK(reported == std::vector<std::string>{"a", "a", "b"});
  const std::vector<std::string> texts = texts_of(damage);
  REQUIRE(texts.size() == 3);
  CHECK(has(texts[0], "one.safetensors: tensor `a` is damaged between bytes "));
  CHECK(has(texts[0], ": expected xxh3-64:"));
  CHECK(damage[1].begin - damage[0].begin == 8 << 20);
  CHECK(has(texts[2], "two.safetensors: tensor `b` is damaged"));
  CHECK(damage[2].file == test::fs::path("folder") / "two.safetensors");

  // What a function of the options throws ends the call.
  options.report = [](const Damage&) { throw std::runtime_error("enough"); };
  CHECK_THROWS_WITH((void)find_damage(files.model(), sums, options), "enough");
  options.report = {};
  options.interrupt = [] { throw std::runtime_error("interrupted"); };
  CHECK_THROWS_WITH((void)find_damage(files.model(), sums, options), "interrupted");
}

TEST_CASE("a file of another size or header is one range") {
  Files files;
  const Sums sums = files.sums();
  files.content["two.safetensors"] = file_with(
      {test::tensor_of("b", Dtype::kU8, {1000}, 3), test::tensor_of("x", Dtype::kU8, {10}, 4)});
  const std::vector<std::string> texts =
      texts_of(find_damage(files.model(), sums, {.is_whole = false}));
  REQUIRE(texts.size() == 1);
  CHECK(has(texts[0], "two.safetensors: the digests are of another file"));
}

TEST_CASE("files and tensors that only the sums have") {
  Files files;
  const Sums sums = files.sums([](auto& tensors) { tensors["more"] = tensors["c"]; });
  // "more" is in the sums of a file that lacks it, "c" is in the file and not in the index.
  const Model model = files.model(
      R"({"weight_map": {"b": "two.safetensors", "a": "one.safetensors", "empty": "one.safetensors"}})");
  const std::vector<Damage> damage = find_damage(model, sums);
  CHECK(texts_of(damage) ==
        std::vector<std::string>{
            "two.safetensors: the file has no tensor `more`, of which the sums have a digest",
            "two.safetensors: the model has no tensor `c`, of which the sums have a digest"});
  CHECK(damage[1].tensor == "c");
  CHECK(damage[1].file == test::fs::path("folder") / "two.safetensors");
  CHECK(find_damage(model, sums, {.is_whole = false}).size() == 1);
  const auto error = test::error_of([&] { safetensors::refuse_absent(model, sums); });
  CHECK(error.code() == test::ErrorCode::kDamaged);
  CHECK(error.subject() == "c");
  CHECK(error.path() == "folder");

  files.content.erase("one.safetensors");
  const Model part = files.model();
  CHECK(texts_of(find_damage(part, sums)) ==
        std::vector<std::string>{
            "two.safetensors: the file has no tensor `more`, of which the sums have a digest",
            "one.safetensors: the model has no file one.safetensors, of which the sums have "
            "digests"});
  CHECK(find_damage(part, sums, {.is_whole = false}).size() == 1);
}

TEST_CASE("files and tensors that only the model has") {
  Files files;
  const Sums sums = files.sums([](auto& tensors) { tensors.erase("c"); });
  files.content["new.safetensors"] = file_with({test::tensor_of("n", Dtype::kU8, {10})});
  files.flip("two.safetensors", 15);  // the other tensors of the file are still compared
  const std::vector<std::string> texts = texts_of(find_damage(files.model(), sums));
  REQUIRE(texts.size() == 3);
  CHECK(texts[0] == "new.safetensors: the sums have no digests of the file");
  CHECK(has(texts[1], "two.safetensors: tensor `b` is damaged"));
  CHECK(texts[2] == "two.safetensors: the sums have no digest of tensor `c`");
}

TEST_CASE("a tensor of which sums have only a SHA-256 cannot be compared") {
  const Files files;
  const Sums sums = files.sums([](auto& tensors) {
    tensors["b"].xxh3_128.reset();
    tensors["b"].blocks.reset();
    tensors["b"].sha256 = safetensors::Digest::parse("sha256:" + std::string(64, '0'));
  });
  CHECK(test::outcome_of([&] { (void)find_damage(files.model(), sums); }) == "kInvalidArgument");
}
