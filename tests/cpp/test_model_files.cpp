#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "model_folders.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/model_files.hpp"
#include "support.hpp"

using safetensors::choose_model_files;
using safetensors::find_model_files;
using safetensors::FolderQuestions;
using safetensors::ModelChoice;
using safetensors::ModelFiles;
using safetensors::ModelForm;
using safetensors::ModelSource;
using safetensors::detail::file_of_other_model;

namespace {

using Names = std::vector<std::string>;
using Row = test::ModelFolder;
using test::joined;

const std::vector<Row>& table() {
  static const std::vector<Row> rows = test::read_model_folders(
      test::read_text(test::fs::path(SAFETENSORS_SOURCE_DIR) / "tests/data/model_folders.txt"));
  return rows;
}

ModelFiles choose(const Row& row, Names names) {
  int asked = 0;
  const FolderQuestions questions{
      .files_of_index =
          [&](const std::string& index) {
            CHECK(++asked == 1);
            return row.indexes.at(index);
          },
      .exists = [&](const std::string& file) { return row.there.contains(file); }};
  return choose_model_files(std::move(names), row.choice, questions);
}

/// Returns a source in memory.
std::shared_ptr<const safetensors::ByteSource> source_of(std::string text) {
  const auto kept = std::make_shared<const std::string>(std::move(text));
  return std::make_shared<const safetensors::MemorySource>(std::as_bytes(std::span(*kept)), kept);
}

/// Returns what the table says of a row for these names.
std::string answer_of(const Row& row, const Names& names) {
  std::string answer;
  const std::string outcome = test::outcome_of([&] {
    const ModelFiles model = choose(row, names);
    answer = joined(model.files) + (model.remarks.empty() ? "" : " !");
    CHECK((model.form == ModelForm::kIndex) == !model.index.empty());
    for (const std::string& file : model.others) {
      CHECK(std::ranges::find(model.files, file) == model.files.end());
      CHECK(std::ranges::find(names, file) != names.end());
    }
  });
  return outcome == "ok" ? answer : outcome;
}

ModelFiles choose(const Names& names, const ModelChoice& choice = {}) {
  return choose(Row{.names = names, .choice = choice}, names);
}

std::string text_for(const Names& names, const ModelChoice& choice = {}) {
  return test::error_of([&] { (void)choose(names, choice); }).what();
}

}  // namespace

TEST_CASE("each folder of the table has its model") {
  REQUIRE(table().size() > 100);
  for (const Row& row : table()) {
    CAPTURE(row.title);
    CAPTURE(row.choice.name);
    CAPTURE(row.choice.variant);
    CHECK(answer_of(row, row.names) == row.answer);
  }
}

TEST_CASE("neither the order of names nor hidden ones matter") {
  std::mt19937 random(1);
  for (const Row& row : table()) {
    CAPTURE(row.title);
    Names names = row.names;
    for (const char* hidden :
         {"._model.safetensors", ".x.safetensors.index.json", ".model.0123456789abcdef.save",
          ".model-00001-of-00001.safetensors"}) {
      names.emplace_back(hidden);
    }
    for (int i = 0; i < 5; ++i) {
      std::ranges::shuffle(names, random);
      CHECK(answer_of(row, names) == row.answer);
    }
  }
}

TEST_CASE("another model is in the folders that have a model, whatever its files are called") {
  for (const Row& row : table()) {
    if (!row.choice.name.empty() || !row.choice.variant.empty()) continue;
    CAPTURE(row.title);
    CHECK(file_of_other_model(row.names, {}).empty() == (row.answer == "kNoModel"));
    CHECK(file_of_other_model(row.names, row.names).empty());
  }
}

TEST_CASE("a folder that cannot be listed gives the same files, or none") {
  std::size_t same = 0;
  for (const Row& row : table()) {
    CAPTURE(row.title);
    // A pair of names matters only if no file of those before it exists.
    const Names probes = safetensors::model_probes(row.choice);
    Names found;
    for (std::size_t i = 0; i + 1 < probes.size() && found.empty(); i += 2) {
      for (const std::string& name : {probes[i], probes[i + 1]}) {
        if (row.there.contains(name)) found.push_back(name);
      }
    }
    const std::string answer = answer_of(row, found);
    if (answer == "kNoModel") continue;
    // What is only in a listing cannot be warned of.
    const bool is_same = answer == row.answer || answer + " !" == row.answer;
    CHECK(is_same);
    same += is_same ? 1 : 0;
  }
  CHECK(same > 50);
}

TEST_CASE("errors say what to pass, and name at most four files") {
  const std::string none = "No .safetensors files in the directory";
  CHECK(text_for({}) == none);
  CHECK(text_for({"config.json", "._pytorch_model.bin"}) == none);
  CHECK(text_for({"x.pt", "pytorch_model.bin", "config.json"}) ==
        none + ", but pickled weights: `safetensors convert` reads `pytorch_model.bin`");
  CHECK(text_for({"pytorch_model-1-of-2.bin", "pytorch_model.bin.index.json"}) ==
        none + ", but pickled weights: `safetensors convert` reads `pytorch_model.bin.index.json`");
  CHECK(text_for({"pytorch_model.bin", "q4.gguf"}) ==
        none + ", but GGUF: `safetensors.weights` and `safetensors convert` read `q4.gguf`");
  CHECK(text_for({"b.safetensors", "a.safetensors"}) ==
        "several models: \"a\" (a.safetensors), \"b\" (b.safetensors): pass a file, an index, a "
        "list of files, or name=\"a\"");
  CHECK(text_for({"model.fp16.safetensors", "model.bf16.safetensors"}) ==
        "several variants of model.safetensors: \"bf16\", \"fp16\": pass a file, an index, or "
        "variant=\"bf16\"");
  CHECK(text_for({"model.fp16.safetensors", "model.safetensors"}, {.variant = "bf16"}) ==
        "no variant \"bf16\" of model.safetensors; there are: the plain files, \"fp16\"");
  CHECK(text_for({"model.safetensors"}, {.name = "x"}) ==
        "no model \"x\"; there are: \"model\" (model.safetensors)");
  CHECK(text_for({"model-00001-of-00002.safetensors"}) ==
        "file number 2 is absent of the 2 in the set of model-00001-of-00002.safetensors: pass a "
        "list of files to load a part");
  const Names many = {"a.safetensors", "b.safetensors", "c.safetensors",
                      "d.safetensors", "e.safetensors", "f.safetensors"};
  CHECK(text_for(many).find("\"d\" (d.safetensors) and 2 more: pass") != std::string::npos);

  const Row both{
      .names = {"model.safetensors", "model.safetensors.index.json"},
      .there = {"model.safetensors", "model-00001-of-00002.safetensors"},
      .indexes = {{"model.safetensors.index.json", {"model-00001-of-00002.safetensors"}}}};
  CHECK(test::error_of([&] { (void)choose(both, both.names); }).what() ==
        std::string("model.safetensors and the files of model.safetensors.index.json "
                    "(model-00001-of-00002.safetensors) may be two models: pass the path of one "
                    "of them"));
}

TEST_CASE("what is left out is listed, and told of if it has the model's name") {
  const ModelFiles model =
      choose({"model.safetensors", "model-00001-of-00003.safetensors",
              "model-00002-of-00003.safetensors", "x.safetensors", "config.json"});
  CHECK(model.others == Names{"model-00001-of-00003.safetensors",
                              "model-00002-of-00003.safetensors", "x.safetensors"});
  REQUIRE(model.remarks.size() == 1);
  CHECK(model.remarks[0] ==
        "model-00001-of-00003.safetensors and 1 more are not used: no index names them, and there "
        "is model.safetensors");
}

TEST_CASE("forms") {
  CHECK(choose({"model.safetensors"}).form == ModelForm::kFile);
  CHECK(choose({"x-1-of-1.safetensors"}).form == ModelForm::kShards);
  CHECK(choose({"weights.0.safetensors"}).form == ModelForm::kParts);
  const ModelFiles ranks = choose({"shard-1-x-1-of-1.safetensors"});
  CHECK(ranks.form == ModelForm::kRanks);
  CHECK(ranks.name == "x");
  CHECK(choose({"x.int8.safetensors"}, ModelChoice{.name = "x", .variant = "int8"}).variant ==
        "int8");
  const ModelFiles fp16 = choose({"model.fp16.safetensors"});
  CHECK(fp16.name == "model");
  CHECK(fp16.variant == "fp16");
}

TEST_CASE("any names give files of the folder or an error") {
  const Names pieces = {"-00001-of-00002.safetensors",
                        "model-00000-of-00000.safetensors",
                        ".safetensors",
                        "model-1-of-999999999.safetensors",
                        "model-1-of-99999999999999999999.safetensors",
                        "model..safetensors",
                        "..safetensors.index.json",
                        ".safetensors.index.json",
                        "x.safetensors.index.json",
                        "shard--model-1-of-1.safetensors",
                        "shard-1--1-of-1.safetensors",
                        "model.safetensors.index..json",
                        "model.safetensors.index.index.json",
                        "x-of-.safetensors",
                        "weights..safetensors",
                        "weights.999999999.safetensors",
                        "model-00001-of-00002.fp16.bf16.safetensors",
                        "a\n\x1b[1m.safetensors",
                        "\xff.safetensors",
                        "model.safetensors",
                        "model.index.fp16.safetensors",
                        std::string(4000, 'a') + ".safetensors"};
  std::mt19937 random(2);
  for (int round = 0; round < 20'000; ++round) {
    Row row;
    std::ranges::sample(pieces, std::back_inserter(row.names), 1 + round % 6, random);
    for (const std::string& name : row.names) {
      if (name.ends_with(".json")) row.indexes[name] = {"model-00001-of-00002.safetensors"};
    }
    try {
      for (const std::string& file : choose(row, row.names).files) {
        const bool is_indexed = file == "model-00001-of-00002.safetensors";
        CHECK((is_indexed || std::ranges::find(row.names, file) != row.names.end()));
      }
    } catch (const safetensors::Error& error) {
      const std::string text = error.what();
      CHECK(text.size() < 6000);
      CHECK(text.find_first_of("\n\x1b") == std::string::npos);
    }
  }
}

TEST_CASE("100,000 names take a bounded time" * doctest::test_suite("timed")) {
  const auto seconds = [](const Names& names) {
    const auto begin = std::chrono::steady_clock::now();
    (void)test::outcome_of([&] { (void)choose(names); });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Names shards, others, variants, totals;
  for (std::size_t i = 1; i <= 100'000; ++i) {
    const std::string number = std::to_string(i);
    shards.push_back("model-" + number + "-of-100000.safetensors");
    others.push_back("x" + number + ".safetensors");
    variants.push_back("model.v" + number + ".safetensors");
    totals.push_back("model-1-of-" + number + ".safetensors");
  }
  CHECK(choose(shards).files.size() == 100'000);
  for (const Names& names : {shards, others, variants, totals}) CHECK(seconds(names) < 20);
}

TEST_CASE("the model of a local path") {
  const test::TempDir dir;
  const test::fs::path folder = dir.path();
  const auto save = [&](const std::string& name, const std::string& text) {
    test::write_text(folder / name, text);
  };
  test::fs::create_directories(folder / "x.safetensors");  // a folder is no file
  CHECK(test::outcome_of([&] { (void)safetensors::find_model_files(folder); }) == "kNoModel");
  save("model-00001-of-00001.safetensors", "");
  save("other.json", R"({"weight_map": {"a": "./sub/a.safetensors"}})");
  const auto shards = safetensors::find_model_files(folder);
  CHECK(shards.form == ModelForm::kShards);
  CHECK(shards.path(0) == folder / "model-00001-of-00001.safetensors");
  CHECK(!shards.content);

  const auto index = safetensors::find_model_files(folder / "other.json");
  CHECK(index.index == "other.json");
  CHECK(index.path(0) == folder / "sub/a.safetensors");
  REQUIRE(index.content);
  CHECK(index.content->name(0) == "a");
  const auto file = safetensors::find_model_files(folder / "other.safetensors");
  CHECK(file.files == Names{"other.safetensors"});
  CHECK(test::outcome_of([&] {
          (void)safetensors::find_model_files(folder / "other.json", {.name = "x"});
        }) == "kInvalidArgument");

  save("model.safetensors", "");
  save("model.safetensors.index.json",
       R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})");
  const auto error = test::error_of([&] { (void)safetensors::find_model_files(folder); });
  CHECK(error.code() == test::ErrorCode::kSeveralModels);
  CHECK(error.path() == folder);
  test::fs::remove(folder / "model-00001-of-00001.safetensors");
  const auto single = safetensors::find_model_files(folder);
  CHECK(single.files == Names{"model.safetensors"});
  CHECK(single.remarks.size() == 1);
  CHECK(!single.content);
}

TEST_CASE("the model of a folder that the program reads is chosen by the same rule") {
  std::size_t count = 0;
  for (const Row& row : table()) {
    if (test::has_dead_links(row)) continue;
    CAPTURE(row.title);
    ++count;
    std::string answer;
    const std::string outcome = test::outcome_of([&] {
      const ModelSource source{.folder = "folder",
                               .names = Names(row.there.begin(), row.there.end()),
                               .open = [&](const std::string& index) {
                                 std::string map;
                                 for (const std::string& file : row.indexes.at(index)) {
                                   map += (map.empty() ? "\"" : ", \"") + file + "\": \"" + file +
                                          "\"";
                                 }
                                 return source_of("{\"weight_map\": {" + map + "}}");
                               }};
      const auto found = find_model_files(source, row.choice);
      answer = joined(found.files) + (found.remarks.empty() ? "" : " !");
      CHECK(found.content.has_value() == (found.form == ModelForm::kIndex));
      CHECK(found.folder == "folder");
    });
    CHECK((outcome == "ok" ? answer : outcome) == row.answer);
  }
  CHECK(count > 100);
  const auto error =
      test::error_of([] { (void)find_model_files(ModelSource{"some folder", {"README.md"}, {}}); });
  CHECK(error.code() == test::ErrorCode::kNoModel);
  CHECK(error.path() == "some folder");
}
