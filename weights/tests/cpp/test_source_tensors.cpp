// The tensors of the files of a model, compared with its index.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "safetensors/save.hpp"
#include "safetensors/weights/error.hpp"
#include "support.hpp"
#include "tensors/shards.hpp"
#include "tensors/source_tensors.hpp"

using safetensors::weights::Errc;
using safetensors::weights::Files;
using safetensors::weights::find_shards;
using safetensors::weights::ModelOptions;
using safetensors::weights::SourceTensor;
using safetensors::weights::SourceTensors;
using safetensors::weights::WeightsError;
using test::OwnTensor;
using test::TempDir;

namespace {

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

void save(const test::fs::path& path, const std::vector<std::string>& names) {
  std::vector<OwnTensor> tensors;
  tensors.reserve(names.size());
  for (const std::string& name : names) {
    tensors.push_back({name, safetensors::Dtype::kU8, {1}, {std::byte(name.back())}});
  }
  safetensors::save_file(test::views_of(tensors), path);
}

/// Two files, with an index that puts these names into them.
struct TwoFiles {
  TwoFiles(const std::vector<std::string>& first, const std::vector<std::string>& second) {
    save(dir / kFirst, first);
    save(dir / kSecond, second);
  }
  void write_index(const std::vector<std::string>& first,
                   const std::vector<std::string>& second) const {
    std::string text;
    for (const std::string& name : first) text += ", \"" + name + "\": \"" + kFirst + "\"";
    for (const std::string& name : second) text += ", \"" + name + "\": \"" + kSecond + "\"";
    test::write_text(dir / "model.safetensors.index.json",
                     "{\"weight_map\": {" + text.substr(2) + "}}");
  }
  [[nodiscard]] SourceTensors open(bool mmap = true, bool strict_index = true) {
    ModelOptions options;
    options.mmap = mmap;
    options.strict_index = strict_index;
    warnings.clear();
    return {Files(), find_shards(Files(), dir.path(), {}), options, warnings};
  }
  TempDir dir;
  std::vector<std::string> warnings{};
};

template <typename Call>
WeightsError error_of(const Call& call) {
  try {
    call();
  } catch (const WeightsError& error) {
    return error;
  }
  FAIL("no error");
  return {Errc::io, {}, {}, 0, {}};
}

bool has(const WeightsError& error, std::string_view text) {
  return std::string_view(error.what()).find(text) != std::string_view::npos;
}

}  // namespace

TEST_CASE("tensors of all files are found by name, mapped or read") {
  TwoFiles model({"c", "a"}, {"b"});
  for (const bool mmap : {true, false}) {
    const SourceTensors tensors = model.open(mmap);
    std::string names;
    for (const SourceTensor& tensor : tensors.all()) {
      names += tensor.info->name;
      CHECK(tensors.find(tensor.info->name) == &tensor);
      CHECK(tensor.bytes({}).bytes[0] == std::byte(tensor.info->name[0]));
      CHECK((tensor.file->mapping() != nullptr) == mmap);
    }
    CHECK(names == "abc");
    CHECK(tensors.find("d") == nullptr);
    CHECK(tensors.find("") == nullptr);
    CHECK(tensors.first_file().path() == model.dir / kFirst);
    CHECK(tensors.find("b")->file->path() == model.dir / kSecond);
    CHECK(model.warnings.empty());
  }
}

TEST_CASE("two files with one name are refused, with or without an index") {
  TwoFiles model({"a", "b"}, {"b", "c"});
  for (const bool indexed : {false, true}) {
    if (indexed) model.write_index({"a", "b"}, {"c"});
    const WeightsError error = error_of([&] { (void)model.open(); });
    CHECK(error.code() == Errc::duplicate);
    CHECK(error.subject() == "b");
    CHECK(error.path() == model.dir / kSecond);
    CHECK(has(error, kFirst));
  }
}

TEST_CASE("an index names tensors that its files have") {
  TwoFiles model({"a"}, {"b", "c"});
  model.write_index({"a"}, {"b", "c"});
  CHECK(model.open().all().size() == 3);
  model.write_index({"a", "b"}, {"c"});
  const WeightsError elsewhere = error_of([&] { (void)model.open(); });
  CHECK(elsewhere.code() == Errc::unknown_tensor);
  CHECK(elsewhere.subject() == "b");
  CHECK(elsewhere.path() == model.dir / "model.safetensors.index.json");
  CHECK(
      has(elsewhere, std::string("`") + kFirst + "`, which the index names, does not contain it"));
  model.write_index({"a"}, {"b", "c", "d"});
  CHECK(error_of([&] { (void)model.open(); }).subject() == "d");
  model.write_index({"a", "aa"}, {"b", "c"});
  CHECK(error_of([&] { (void)model.open(true, false); }).subject() == "aa");
}

TEST_CASE("tensors that the index does not name are refused, or a warning") {
  TwoFiles model({"a", "aa"}, {"b", "c"});
  model.write_index({"a", "aa"}, {"c"});
  const WeightsError error = error_of([&] { (void)model.open(); });
  CHECK(error.code() == Errc::unknown_tensor);
  CHECK(error.subject() == "b");
  CHECK(error.path() == model.dir / kSecond);
  CHECK(has(error, "strict_index=false"));
  CHECK(model.open(true, false).find("b") != nullptr);
  CHECK(model.warnings == std::vector<std::string>{"the index does not name `b`"});
  model.write_index({"aa"}, {"b"});
  CHECK(model.open(true, false).all().size() == 4);
  CHECK(model.warnings == std::vector<std::string>{"the index does not name `a` and 1 more"});
}

TEST_CASE("a file that is damaged or absent is named") {
  TwoFiles model({"a"}, {"b"});
  model.write_index({"a"}, {"b"});
  test::write_text(model.dir / kSecond, "damaged");
  const WeightsError damaged = error_of([&] { (void)model.open(); });
  CHECK(damaged.path() == model.dir / kSecond);
  test::fs::remove(model.dir / kSecond);
  const WeightsError absent = error_of([&] { (void)model.open(); });
  CHECK(absent.code() == Errc::missing_shard);
  CHECK(absent.subject() == "b");
  CHECK(has(absent, std::string("there is no file `") + kSecond + "`"));
}
