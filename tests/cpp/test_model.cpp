// Models of several files: open_model, and models of any sources.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "safetensors/model.hpp"
#include "sharded_model.hpp"

using safetensors::Backend;
using safetensors::Dtype;
using safetensors::ErrorCode;
using safetensors::Index;
using safetensors::Model;
using safetensors::ModelRead;
using safetensors::ModelTensor;
using safetensors::open_model;
using safetensors::SafeOpen;
using safetensors::TensorView;
using test::error_text;
using test::file_with;
using test::has;
using test::kIndexName;
using test::OwnTensor;
using test::same;
using test::Sharded;

TEST_CASE("all tensors of all shards, by name") {
  for (const bool with_index : {false, true}) {
    CAPTURE(with_index);
    const Sharded files(with_index);
    const auto by_name = files.by_name();
    for (const Backend backend : {Backend::kMmap, Backend::kPread}) {
      const Model model = open_model(files.path(), {.open = {.backend = backend}});
      CHECK(model.file_count() == 3);
      CHECK(model.found().index == (with_index ? kIndexName : ""));
      REQUIRE(model.size() == by_name.size());
      std::size_t number = 0;
      for (const auto& [name, place] : by_name) {
        CAPTURE(name);
        CHECK(model.name(number) == name);
        CHECK(model.file_of(number) == place.first);
        CHECK(model.number_of(name) == number);
        const ModelTensor tensor = model.tensor(number);
        CHECK(tensor.file == place.first);
        CHECK(tensor.info == model.at(name).info);
        CHECK(same(model.get_tensor(name), *place.second));
        CHECK(same(model.get_tensor(tensor), *place.second));
        ++number;
      }
      CHECK(model.file(2).metadata()[0].second == "2");
      CHECK(!model.contains("aa"));
      CHECK(!model.find(""));
    }
  }
}

TEST_CASE("a single file is a model, too") {
  const Sharded files(false);
  const Model model = open_model(files.file(1));
  CHECK(model.size() == 3);
  CHECK(model.name(0) == "a");
  CHECK(same(model.get_tensor("y"), files.tensors(1)[2]));
  const auto error = test::error_of([&] { (void)model.at("c"); });
  CHECK(error.code() == ErrorCode::kTensorNotFound);
  CHECK(error.path() == files.file(1));
  CHECK(error.subject() == "c");
}

TEST_CASE("a view of a mapped file outlives its model") {
  const Sharded files(true);
  const TensorView view = open_model(files.path()).get_tensor("c");
  const TensorView row = open_model(files.path()).get_slice("c", {Index::at(1)});
  CHECK(same(view, files.tensors(0)[0]));
  CHECK(std::ranges::equal(row.bytes(), std::span(files.tensors(0)[0].bytes).subspan(16, 16)));
}

TEST_CASE("reads of many tensors and parts, from any files") {
  const Sharded files(true);
  const auto by_name = files.by_name();
  for (const Backend backend : {Backend::kMmap, Backend::kPread}) {
    const Model model = open_model(files.path(), {.open = {.backend = backend}});
    std::map<std::string, std::vector<std::byte>> read;
    std::vector<ModelRead> reads;
    for (const auto& [name, place] : by_name) {
      auto& to = read[name];
      to.resize(place.second->bytes.size());
      reads.push_back({model.at(name), to});
    }
    const ModelTensor matrix = model.at("c");
    const auto part =
        model.file(matrix.file).select_part(*matrix.info, {Index::all(), Index::slice(1, 3)});
    std::vector<std::byte> columns(part.runs.nbytes());
    reads.insert(reads.begin() + 1, {matrix, columns, {&part.runs, 1}});
    model.read(reads);
    for (const auto& [name, place] : by_name) CHECK(read[name] == place.second->bytes);
    const TensorView expected = model.get_slice("c", {Index::all(), Index::slice(1, 3)});
    CHECK(std::ranges::equal(columns, expected.bytes()));
    const std::vector<ModelRead> too_short = {{matrix, std::span(columns).first(3)}};
    CHECK(has(error_text([&] { model.read(too_short); }),
              "tensor `c` has 96 bytes, the destination 3"));
  }
}

TEST_CASE("one load of tensors of all files") {
  const Sharded files(true);
  const Model model = open_model(files.path());
  std::vector<std::vector<std::byte>> memory(model.size());
  std::vector<safetensors::LoadTensor> tensors;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const ModelTensor tensor = model.tensor(i);
    memory[i].resize(tensor.info->nbytes() + 1);  // no address is null
    tensors.push_back(model.to_load(tensor, reinterpret_cast<std::uintptr_t>(memory[i].data())));
  }
  safetensors::Load load({}, model.sources());
  load.add(tensors);
  load.finish();
  load.wait();
  for (std::size_t i = 0; i < model.size(); ++i) {
    memory[i].pop_back();
    CHECK(memory[i] == files.by_name().at(std::string(model.name(i))).second->bytes);
  }
}

TEST_CASE("a model of other sources") {
  safetensors::FoundModel found;
  found.form = safetensors::ModelForm::kIndex;
  found.index = "https://host/m.index.json";
  found.files = {"one", "two"};
  found.content =
      safetensors::ShardIndex::parse(R"({"weight_map": {"a": "one", "b": "two", "c": "one"}})");
  const std::map<std::string, std::vector<OwnTensor>> content = {
      {"one", {test::tensor_of("a", Dtype::kU8, {3}), test::tensor_of("c", Dtype::kU8, {4})}},
      {"two", {test::tensor_of("b", Dtype::kU8, {5}), test::tensor_of("x", Dtype::kU8, {4})}}};
  std::vector<std::string> opened;
  const Model model(found, [&](const test::fs::path& path) {
    opened.push_back(path.string());
    const auto bytes =
        std::make_shared<const std::vector<std::byte>>(file_with(content.at(path.string())));
    return SafeOpen(std::make_shared<safetensors::MemorySource>(*bytes, bytes), path);
  });
  CHECK(model.size() == 3);
  CHECK(opened.empty());
  CHECK(same(model.get_tensor("c"), content.at("one")[1]));
  CHECK(same(model.get_tensor("a"), content.at("one")[0]));
  CHECK(opened == std::vector<std::string>{"one"});
  CHECK(same(model.get_tensor("b"), content.at("two")[0]));
  CHECK(opened.size() == 2);
  found.files.pop_back();
  CHECK(test::outcome_of([&] { (void)Model(found, {}); }) == "kInvalidArgument");
}

TEST_CASE("many threads use one model") {
  const Sharded files(true);
  const auto by_name = files.by_name();
  const auto read_at_once = [&](const Model& model) {
    std::vector<std::vector<std::byte>> memory;
    std::vector<ModelRead> reads;
    for (const auto& [name, place] : by_name) {
      memory.emplace_back(place.second->bytes.size());
      reads.push_back({model.at(name), memory.back()});
    }
    model.read(reads);
    auto read = memory.begin();
    return std::ranges::all_of(
        by_name, [&](const auto& each) { return *read++ == each.second.second->bytes; });
  };
  for (int round = 0; round < 20; ++round) {
    const Model model = open_model(files.path());
    std::atomic<int> failures = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&, i] {
        try {
          if (i == 0) model.open_all();
          if (i % 2 != 0 && !read_at_once(model)) ++failures;
          for (const auto& [name, place] : by_name) {
            const std::optional<ModelTensor> tensor = model.find(name);
            if (!tensor || !same(model.get_tensor(*tensor), *place.second)) ++failures;
          }
        } catch (...) {
          ++failures;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(failures == 0);
  }
}

namespace {

/// Replaces the index as a save does: by another file, which may have the same content.
void replace_index(const Sharded& files) {
  const test::fs::path made = files.path() / "new.json";
  test::fs::copy_file(files.path() / kIndexName, made);
  test::fs::rename(made, files.path() / kIndexName);
}

/// Opens files, and replaces the index before the file with this number is opened.
Model::Opener replacing_at(const Sharded& files, std::size_t number) {
  return [&files, number](const test::fs::path& path) {
    if (path == files.file(number)) replace_index(files);
    return SafeOpen(path);
  };
}

}  // namespace

TEST_CASE("a file that is opened after the index was replaced may be of another model") {
  for (const bool by_index : {false, true}) {
    CAPTURE(by_index);
    const Sharded files(true);
    const Model model = open_model(by_index ? files.path() / kIndexName : files.path());
    CHECK(same(model.get_tensor("c"), files.tensors(0)[0]));
    replace_index(files);
    const auto error = test::error_of([&] { (void)model.at("a"); });
    CHECK(error.code() == ErrorCode::kFileChanged);
    CHECK(error.path() == files.path() / kIndexName);
    CHECK(has(error.what(), "the index was replaced or removed"));
    CHECK(test::outcome_of([&] { (void)model.at("a"); }) == "kFileChanged");
    CHECK(test::outcome_of([&] { model.open_all(); }) == "kFileChanged");
    CHECK(test::outcome_of([&] { (void)model.at("b"); }) == "kFileChanged");
    CHECK(same(model.get_tensor("z"), files.tensors(0)[1]));  // its file was open
  }
}

TEST_CASE("an index that is replaced while all files are opened") {
  for (std::size_t number = 0; number < 3; ++number) {
    CAPTURE(number);
    const Sharded files(true);
    const Model::Opener opener = replacing_at(files, number);
    CHECK(test::outcome_of([&] {
            (void)open_model(files.path(), {.opener = opener, .opens_all = true});
          }) == "kFileChanged");
    const Model model = open_model(files.path(), {.opener = opener});
    CHECK(test::outcome_of([&] { model.open_all(); }) == "kFileChanged");
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(test::outcome_of([&] { (void)model.file(i); }) == "kFileChanged");
    }
  }
}

TEST_CASE("a file that is absent after the index was replaced") {
  const Sharded files(true);
  const Model model = open_model(files.path());
  test::fs::remove(files.file(1));
  CHECK(test::outcome_of([&] { (void)model.at("a"); }) == "kIncompleteModel");
  test::fs::remove(files.path() / kIndexName);
  CHECK(test::outcome_of([&] { (void)model.at("a"); }) == "kFileChanged");
  CHECK(test::outcome_of([&] { model.found().check_index(); }) == "kFileChanged");
}

TEST_CASE("a model without an index has none that could be replaced") {
  const Sharded files(false);
  const Model model = open_model(files.path());
  model.found().check_index();
  model.open_all();
  CHECK(model.size() == 6);
}
