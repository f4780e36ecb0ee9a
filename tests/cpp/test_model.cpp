// Models of several files: open_model, and models of any sources.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_source.hpp"
#include "model_folders.hpp"
#include "safetensors/model.hpp"

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
using test::OwnTensor;
using test::TempDir;

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

std::string shard(std::size_t number, std::size_t total) {
  const auto digits = [](std::size_t value) {
    const std::string text = std::to_string(value);
    return std::string(5 - text.size(), '0') + text;
  };
  return "model-" + digits(number) + "-of-" + digits(total) + ".safetensors";
}

std::vector<std::byte> file_with(const std::vector<OwnTensor>& tensors,
                                 const safetensors::Metadata& metadata = {}) {
  const safetensors::Buffer file = safetensors::serialize(test::views_of(tensors), &metadata);
  return {file.bytes().begin(), file.bytes().end()};
}

void save(const test::fs::path& path, const std::vector<OwnTensor>& tensors,
          const safetensors::Metadata& metadata = {}) {
  test::write_text(path, test::text_of(file_with(tensors, metadata)));
}

using WeightMap = std::vector<std::pair<std::string, std::string>>;

std::string index_text(const WeightMap& files) {
  std::string text = R"({"weight_map": {)";
  for (const auto& [name, file] : files) {
    text += (text.ends_with('{') ? "\"" : ", \"") + name + "\": \"" + file + "\"";
  }
  return text + "}}";
}

/// Three shards with tensors whose order by name is not that of their files or bytes.
class Sharded {
 public:
  explicit Sharded(bool with_index) {
    WeightMap map;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string file = shard(i + 1, 3);
      save(dir_ / file, tensors_[i], {{"number", std::to_string(i)}});
      for (const OwnTensor& tensor : tensors_[i]) map.emplace_back(tensor.name, file);
    }
    if (with_index) write_index(map);
  }
  void write_index(const WeightMap& map) const { test::write_text(dir_ / kIndex, index_text(map)); }

  [[nodiscard]] const test::fs::path& path() const { return dir_.path(); }
  [[nodiscard]] test::fs::path file(std::size_t i) const { return dir_ / shard(i + 1, 3); }
  [[nodiscard]] const std::vector<OwnTensor>& tensors(std::size_t i) const { return tensors_[i]; }
  /// Returns all tensors by name, each with the number of its file.
  [[nodiscard]] std::map<std::string, std::pair<std::size_t, const OwnTensor*>> by_name() const {
    std::map<std::string, std::pair<std::size_t, const OwnTensor*>> all;
    for (std::size_t i = 0; i < 3; ++i) {
      for (const OwnTensor& tensor : tensors_[i]) all[tensor.name] = {i, &tensor};
    }
    return all;
  }

 private:
  TempDir dir_;
  std::vector<std::vector<OwnTensor>> tensors_ = {
      {test::tensor_of("c", Dtype::kF32, {6, 4}, 1), test::tensor_of("z", Dtype::kU8, {5}, 2)},
      {test::tensor_of("a", Dtype::kBF16, {8, 2}, 3), test::tensor_of("empty", Dtype::kU8, {0}, 4),
       test::tensor_of("y", Dtype::kI64, {3}, 5)},
      {test::tensor_of("b", Dtype::kF32, {}, 6)}};
};

bool same(const TensorView& view, const OwnTensor& tensor) {
  return view.name == tensor.name && view.dtype == tensor.dtype &&
         std::ranges::equal(view.shape, tensor.shape) &&
         std::ranges::equal(view.bytes(), tensor.bytes);
}

std::string error_text(const auto& work) { return test::error_of(work).what(); }

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("all tensors of all shards, by name") {
  for (const bool with_index : {false, true}) {
    CAPTURE(with_index);
    const Sharded files(with_index);
    const auto by_name = files.by_name();
    for (const Backend backend : {Backend::kMmap, Backend::kPread}) {
      const Model model = open_model(files.path(), {.open = {.backend = backend}});
      CHECK(model.file_count() == 3);
      CHECK(model.found().index == (with_index ? kIndex : ""));
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
  CHECK(has(absent.what(), (files.path() / kIndex).string()));
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
    CHECK(has(error.what(), (files.path() / kIndex).string() + " puts tensor 'nowhere' into"));
  }
  const auto unknown = test::error_of([&] { (void)wrong.at("nowher"); });
  CHECK(unknown.path() == files.path() / kIndex);
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
  test::write_text(dir / kIndex, R"({"weight_map": {}})");
  const Model model = open_model(dir / kIndex);
  CHECK(model.size() == 0);
  CHECK(model.file_count() == 0);
  CHECK(model.sources().empty());
  CHECK(test::outcome_of([&] { (void)model.at("a"); }) == "kTensorNotFound");
}

TEST_CASE("hostile indexes and shards give one error") {
  const Sharded files(false);
  const std::string first = shard(1, 3);
  const auto open = [&](const std::string& text) {
    test::write_text(files.path() / kIndex, text);
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
