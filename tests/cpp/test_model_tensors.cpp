// Which files and tensors are a model: with an index and without, and of hostile ones.
#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "model_folders.hpp"
#include "safetensors/model.hpp"
#include "sharded_model.hpp"

using safetensors::Dtype;
using safetensors::ErrorCode;
using safetensors::Model;
using safetensors::open_model;
using test::error_text;
using test::has;
using test::index_text;
using test::kIndexName;
using test::OwnTensor;
using test::same;
using test::save;
using test::shard;
using test::Sharded;
using test::TempDir;
using test::WeightMap;

TEST_CASE("only files of which something is requested are opened") {
  const Sharded files(true);
  test::fs::remove(files.file(0));
  test::write_text(files.file(2), "damaged");
  const Model model = open_model(files.path());
  CHECK(same(model.get_tensor("a"), files.tensors(1)[0]));
  const auto absent = test::error_of([&] { (void)model.at("z"); });
  CHECK(absent.code() == ErrorCode::kIncompleteModel);
  CHECK(absent.os_error() == ENOENT);
  CHECK(absent.path() == files.file(0));
  CHECK(absent.subject() == "c");
  CHECK(has(absent.what(), "puts tensor 'c' into a file that is missing"));
  CHECK(has(absent.what(), (files.path() / kIndexName).string()));
  test::fs::remove(files.file(1));
  const Model other = open_model(files.path());
  CHECK(test::error_of([&] { (void)other.at("y"); }).subject() == "a");
  CHECK(has(error_text([&] { (void)model.at("b"); }), files.file(2).string()));
  CHECK(test::outcome_of([&] { model.open_all(); }) != "ok");
  CHECK(test::outcome_of([&] { (void)model.sources(); }) != "ok");
  save(files.file(0), files.tensors(0));  // a file that could not be opened is tried again
  CHECK(same(model.get_tensor("z"), files.tensors(0)[1]));
}

TEST_CASE("an index decides which tensors are the model") {
  const Sharded files(false);
  save(files.file(1), {files.tensors(0)[0], files.tensors(1)[0]});  // "c" is in two files
  files.write_index({{"c", shard(1, 3)}, {"a", shard(2, 3)}});
  const Model model = open_model(files.path());
  CHECK(model.size() == 2);
  CHECK(model.file_count() == 2);
  CHECK(model.at("c").file == 0);
  CHECK(!model.contains("z"));

  files.write_index({{"c", shard(1, 3)}, {"nowhere", shard(1, 3)}, {"a", shard(2, 3)}});
  const Model wrong = open_model(files.path());
  CHECK(same(wrong.get_tensor("a"), files.tensors(1)[0]));
  for (const char* name : {"nowhere", "c"}) {
    const auto error = test::error_of([&] { (void)wrong.at(name); });
    CHECK(error.code() == ErrorCode::kTensorNotFound);
    CHECK(error.path() == files.file(0));
    CHECK(error.subject() == "nowhere");
    CHECK(has(error.what(), (files.path() / kIndexName).string() + " puts tensor 'nowhere' into"));
  }
  const auto unknown = test::error_of([&] { (void)wrong.at("nowher"); });
  CHECK(unknown.path() == files.path() / kIndexName);
  CHECK(has(unknown.what(), "`nowhere`"));
}

TEST_CASE("without an index, no two files may have the same tensor") {
  const Sharded files(false);
  save(files.file(2), {files.tensors(2)[0], files.tensors(0)[1]});
  const auto error = test::error_of([&] { (void)open_model(files.path()); });
  CHECK(error.code() == ErrorCode::kDuplicateName);
  CHECK(error.path() == files.file(2));
  CHECK(error.subject() == "z");
  CHECK(has(error.what(), files.file(0).string()));

  std::vector<OwnTensor> many;
  for (int i = 0; i < 40; ++i) {
    many.push_back(test::tensor_of("layer." + std::to_string(10 + i), Dtype::kU8, {2}));
  }
  save(files.file(1), many);
  save(files.file(2), many);
  CHECK(test::error_of([&] { (void)open_model(files.path()); }).subject() == "layer.10");
}

TEST_CASE("an index of no tensors") {
  const TempDir dir;
  test::write_text(dir / kIndexName, R"({"weight_map": {}})");
  const Model model = open_model(dir / kIndexName);
  CHECK(model.size() == 0);
  CHECK(model.file_count() == 0);
  CHECK(model.sources().empty());
  CHECK(test::outcome_of([&] { (void)model.at("a"); }) == "kTensorNotFound");
}

TEST_CASE("hostile indexes and shards give one error") {
  const Sharded files(false);
  const std::string first = shard(1, 3);
  const auto open = [&](const std::string& text) {
    test::write_text(files.path() / kIndexName, text);
    return test::outcome_of([&] {
      const Model model = open_model(files.path());
      model.open_all();
    });
  };
  CHECK(open("") == "kInvalidHeaderJson");
  CHECK(open(R"({"weight_map": {"c": "../x"}})") == "kInvalidHeaderJson");
  CHECK(open(R"({"weight_map": {"c": "a", "c": "b"}})") == "kDuplicateName");
  CHECK(open(index_text({{"c", first}, {"z", first}})) == "ok");
  WeightMap many = {{"c", first}};
  for (int i = 0; i < 1000; ++i) many.emplace_back("c" + std::to_string(i), first);
  CHECK(open(index_text(many)) == "kTensorNotFound");
  test::fs::create_directory(files.path() / "folder");
  CHECK(open(index_text({{"c", "folder"}})) == "kNotRegularFile");
}

TEST_CASE("each folder of the table opens as its model") {
  const auto rows = test::read_model_folders(
      test::read_text(test::fs::path(SAFETENSORS_SOURCE_DIR) / "tests/data/model_folders.txt"));
  REQUIRE(rows.size() > 100);
  for (const test::ModelFolder& row : rows) {
    CAPTURE(row.title);
#if defined(_WIN32)
    if (test::has_dead_links(row)) continue;  // to make a link takes a right there
#endif
    const TempDir dir;
    const auto make = [&](const std::string& name) {
      const test::fs::path path = dir / name;
      test::fs::create_directories(path.parent_path());
      if (name.ends_with(".safetensors")) {
        save(path, {test::tensor_of("tensor of " + name, Dtype::kU8, {3})});
      } else {
        test::write_text(path, "{}");
      }
    };
    for (const std::string& name : row.there) make(name);
    for (const std::string& name : row.names) {
      if (row.there.contains(name)) continue;
      test::fs::create_symlink("nowhere", dir / name);
    }
    for (const auto& [index, names] : row.indexes) {
      WeightMap map;
      for (const std::string& name : names) map.emplace_back("tensor of " + name, name);
      test::write_text(dir / index, index_text(map));
    }
    bool opens = true;
    std::string answer;
    const std::string outcome = test::outcome_of([&] {
      const Model model = open_model(dir.path(), {.choice = row.choice});
      const auto& found = model.found();
      answer = test::joined(found.files) + (found.remarks.empty() ? "" : " !");
      CHECK(model.size() == found.files.size());
      for (std::size_t i = 0; i < model.size(); ++i) {
        CHECK(model.name(i) == "tensor of " + found.files[model.file_of(i)]);
        opens = row.there.contains(found.files[model.file_of(i)]);
        CHECK((test::outcome_of([&] { (void)model.tensor(i); }) == "ok") == opens);
      }
    });
    if (outcome == "kIo") continue;  // the file of the model is a link to nothing
    CHECK((outcome == "ok" ? answer : outcome) == row.answer);
  }
}
