// C: models of several files.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "c_support.hpp"

using safetensors::Dtype;
using test::named;
using test::OwnTensor;

namespace {

const std::vector<std::vector<OwnTensor>> kShards = {
    {test::tensor_of("z", Dtype::kF32, {4, 3}, 1), test::tensor_of("b", Dtype::kU8, {5}, 2)},
    {test::tensor_of("a", Dtype::kF16, {2, 2}, 3), test::tensor_of("y", Dtype::kI64, {0}, 4)}};

std::string shard_name(std::size_t number) {
  return "model-0000" + std::to_string(number + 1) + "-of-00002.safetensors";
}

/// A folder with two shards and, if wanted, an index.
class Folder {
 public:
  explicit Folder(bool with_index) {
    std::string map;
    for (std::size_t i = 0; i < kShards.size(); ++i) {
      const safetensors::Metadata metadata = {{"number", std::to_string(i)}};
      safetensors::save_file(test::views_of(kShards[i]), path(i), &metadata);
      for (const OwnTensor& each : kShards[i]) {
        map += (map.empty() ? "\"" : ", \"") + each.name + "\": \"" + shard_name(i) + "\"";
      }
    }
    if (with_index) write_index(map);
  }
  void write_index(const std::string& map) const {
    test::write_text(dir_ / "model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  }
  [[nodiscard]] test::fs::path path(std::size_t shard) const { return dir_ / shard_name(shard); }
  [[nodiscard]] std::string text() const { return dir_.path().string(); }
  [[nodiscard]] std::int32_t open(safetensors_file** model, safetensors_error* error = nullptr,
                                  std::uint32_t flags = 0) const {
    auto options = test::sized<safetensors_options>();
    options.flags = flags;
    return safetensors_open_model(SAFETENSORS_TEXT(text().c_str()), &options, model, error);
  }

 private:
  test::TempDir dir_;
};

std::string names_of(const test::File& model) {
  std::string names;
  for (std::size_t i = 0; i < safetensors_count(model.get()); ++i) {
    safetensors_tensor tensor{};
    REQUIRE(safetensors_at(model.get(), i, &tensor, nullptr) == SAFETENSORS_OK);
    names += std::string(tensor.name) + std::to_string(tensor.file) + " ";
  }
  return names;
}

/// Reads all tensors by one call, and the metadata of their files. Returns whether they are right.
bool read_at_once(const test::File& model) {
  std::vector<safetensors_tensor> tensors(4);
  std::vector<std::vector<std::byte>> memory;
  std::vector<safetensors_request> requests;
  std::string wanted;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (safetensors_at(model.get(), i, &tensors[i], nullptr) != SAFETENSORS_OK) return false;
    auto& to = memory.emplace_back(static_cast<std::size_t>(tensors[i].nbytes));
    requests.push_back({&tensors[i], nullptr, 0, to.data(), to.size(), SAFETENSORS_AS_STORED, 0});
    wanted += std::to_string(tensors[i].file);
  }
  std::string numbers;
  for (const safetensors_tensor& each : tensors) {
    std::size_t size = 0;
    const char* const number =
        safetensors_metadata_value(model.get(), each.file, "number", 6, &size);
    if (number != nullptr) numbers.append(number, size);
  }
  if (safetensors_read(model.get(), requests.data(), requests.size(), nullptr, nullptr) != 0) {
    return false;
  }
  const auto is_read = [&](const OwnTensor& each) {
    return std::ranges::find(memory, each.bytes) != memory.end();
  };
  return numbers == wanted && std::ranges::all_of(kShards[0], is_read) &&
         std::ranges::all_of(kShards[1], is_read);
}

}  // namespace

TEST_CASE("C: a model of several files is read as one") {
  for (const bool with_index : {true, false}) {
    const Folder folder(with_index);
    safetensors_file* opened = nullptr;
    REQUIRE(folder.open(&opened) == SAFETENSORS_OK);
    const test::File model(opened);
    CHECK(names_of(model) == "a1 b0 y1 z0 ");
    REQUIRE(safetensors_file_count(model.get()) == 2);
    std::vector<safetensors_tensor> tensors;
    std::vector<std::vector<std::byte>> memory;
    for (std::uint32_t file = 0; file < 2; ++file) {
      std::size_t size = 0;
      const char* const path = safetensors_file_path(model.get(), file, &size);
      CHECK(std::string(path, size) == folder.path(file).string());
      safetensors_file_info info{};
      REQUIRE(safetensors_file_at(model.get(), file, &info, nullptr) == SAFETENSORS_OK);
      CHECK(info.data_offset == info.header_nbytes + 8);
      CHECK(info.metadata_count == 1);
      std::string json(info.header_nbytes, '\0');
      REQUIRE(safetensors_header_json(model.get(), file, json.data(), json.size(), nullptr) == 0);
      CHECK(test::read_text(folder.path(file)).substr(8, json.size()) == json);
      const std::string number = std::to_string(file);
      CHECK(safetensors_metadata_value(model.get(), file, "number", 6, nullptr) == number);
      safetensors_item item{};
      REQUIRE(safetensors_metadata_at(model.get(), file, 0, &item, nullptr) == SAFETENSORS_OK);
      CHECK(item.value == number);
      for (const OwnTensor& each : kShards[file]) {
        tensors.push_back(test::find(model, each.name));
        CHECK(tensors.back().file == file);
        CHECK(std::ranges::equal(
            std::span(static_cast<const std::byte*>(tensors.back().data), tensors.back().nbytes),
            each.bytes));
        memory.emplace_back(each.bytes.size());
      }
    }
    std::vector<safetensors_request> requests;
    for (std::size_t i = tensors.size(); i-- > 0;) {
      requests.push_back(
          {&tensors[i], nullptr, 0, memory[i].data(), memory[i].size(), SAFETENSORS_AS_STORED, 0});
    }
    CHECK(safetensors_read(model.get(), requests.data(), requests.size(), nullptr, nullptr) == 0);
    std::size_t at = 0;
    for (const auto& shard : kShards) {
      for (const OwnTensor& each : shard) CHECK(memory[at++] == each.bytes);
    }
    // Beyond the last file.
    safetensors_file_info info{};
    safetensors_item item{};
    CHECK(named(safetensors_file_at(model.get(), 2, &info, nullptr)) == "kIndexOutOfBounds");
    CHECK(named(safetensors_metadata_at(model.get(), 2, 0, &item, nullptr)) == "kIndexOutOfBounds");
    CHECK(named(safetensors_header_json(model.get(), 2, nullptr, 0, nullptr)) ==
          "kIndexOutOfBounds");
    CHECK(safetensors_file_path(model.get(), 2, nullptr) == nullptr);
    CHECK(safetensors_metadata_value(model.get(), 2, "number", 6, nullptr) == nullptr);
    CHECK(named(safetensors_at(model.get(), 4, tensors.data(), nullptr)) == "kIndexOutOfBounds");
  }
}

TEST_CASE("C: a tensor with the number of another file is refused") {
  const Folder folder(true);
  safetensors_file* opened = nullptr;
  REQUIRE(folder.open(&opened) == SAFETENSORS_OK);
  const test::File model(opened);
  safetensors_tensor tensor = test::find(model, "z");
  std::byte room[48];
  const safetensors_index row = {SAFETENSORS_ONE, 0, 1, 0, 0};
  std::uint64_t shape[3];
  safetensors_tensor part{};
  for (const std::uint32_t number : {1U, 2U, UINT32_MAX}) {
    tensor.file = number;
    CHECK(named(test::read(model.get(), tensor, room, sizeof room)) == "kInvalidArgument");
    CHECK(named(safetensors_slice(model.get(), &tensor, &row, 1, shape, &part, nullptr)) ==
          "kInvalidArgument");
  }
  tensor.file = 0;
  CHECK(named(safetensors_slice(model.get(), &tensor, &row, 1, shape, &part, nullptr)) == "ok");
  CHECK(part.file == 0);
}

TEST_CASE("C: a file of an index is opened when something of it is requested") {
  const Folder folder(true);
  test::fs::remove(folder.path(1));
  safetensors_error error{};
  safetensors_file* opened = nullptr;
  CHECK(named(folder.open(&opened, &error, SAFETENSORS_OPEN_ALL)) == "kIncompleteModel");
  CHECK(opened == nullptr);
  REQUIRE(folder.open(&opened) == SAFETENSORS_OK);
  const test::File model(opened);
  CHECK(test::find(model, "z").nbytes == 48);
  CHECK(safetensors_count(model.get()) == 4);
  CHECK(safetensors_file_path(model.get(), 1, nullptr) == folder.path(1).string());
  safetensors_tensor tensor{};
  safetensors_file_info info{};
  safetensors_item item{};
  for (int way = 0; way < 4; ++way) {
    const std::int32_t code = way == 0   ? safetensors_find(model.get(), "a", 1, &tensor, &error)
                              : way == 1 ? safetensors_at(model.get(), 0, &tensor, &error)
                              : way == 2
                                  ? safetensors_file_at(model.get(), 1, &info, &error)
                                  : safetensors_metadata_at(model.get(), 1, 0, &item, &error);
    CHECK(named(code) == "kIncompleteModel");
    CHECK(error.os_error == ENOENT);
    CHECK(error.text + error.path == folder.path(1).string());
    CHECK(std::string(error.text).find("index.json puts tensor 'a' into a file that is missing") !=
          std::string::npos);
  }
  CHECK(safetensors_metadata_value(model.get(), 1, "number", 6, nullptr) == nullptr);
  // What it lacks, it lacks when it is there again, too.
  (void)test::saved(folder.path(1), {test::tensor_of("q", Dtype::kU8, {1})});
  CHECK(named(safetensors_find(model.get(), "a", 1, &tensor, &error)) == "kTensorNotFound");
  CHECK(error.text + error.path == folder.path(1).string());
}

TEST_CASE("C: which model of a folder is opened, and what is refused") {
  const test::TempDir folder;
  const std::string path = folder.path().string();
  safetensors_error error{};
  const auto outcome = [&](const char* name, const char* variant) {
    auto options = test::sized<safetensors_options>();
    options.name = name;
    options.name_size = SAFETENSORS_NUL_TERMINATED;
    options.variant = variant;
    options.variant_size = SAFETENSORS_NUL_TERMINATED;
    safetensors_file* opened = nullptr;
    const std::int32_t code =
        safetensors_open_model(path.data(), path.size(), &options, &opened, &error);
    const test::File model(opened);
    return code == SAFETENSORS_OK ? names_of(model) : named(code);
  };
  CHECK(outcome("", "") == "kNoModel");
  const auto save = [&](const char* file, const char* tensor) {
    (void)test::saved(folder / file, {test::tensor_of(tensor, Dtype::kU8, {1})});
  };
  save("one.safetensors", "one");
  CHECK(outcome("", "") == "one0 ");
  save("two.safetensors", "two");
  save("two.fp16.safetensors", "half");
  CHECK(outcome("", "") == "kSeveralModels");
  CHECK(outcome("two", "") == "two0 ");
  CHECK(outcome("two", "fp16") == "half0 ");
  save("three-00001-of-00002.safetensors", "part");
  CHECK(outcome("three", "") == "kIncompleteModel");
  save("three-00002-of-00002.safetensors", "part");
  CHECK(outcome("three", "") == "kDuplicateName");
  CHECK(std::string(error.text + error.subject) == "part");

  // One file; and options that are for folders only.
  const std::string one = (folder / "one.safetensors").string();
  safetensors_file* opened = nullptr;
  REQUIRE(safetensors_open_model(one.data(), one.size(), nullptr, &opened, nullptr) == 0);
  CHECK(names_of(test::File(opened)) == "one0 ");
  auto options = test::sized<safetensors_options>();
  options.variant = "fp16";
  options.variant_size = 4;
  opened = nullptr;
  CHECK(named(safetensors_open_model(one.data(), one.size(), &options, &opened, nullptr)) ==
        "kInvalidArgument");
  CHECK(named(safetensors_open(one.data(), one.size(), &options, &opened, nullptr)) ==
        "kInvalidArgument");
  options = test::sized<safetensors_options>();
  options.flags = SAFETENSORS_OPEN_ALL;
  CHECK(named(safetensors_open(one.data(), one.size(), &options, &opened, nullptr)) ==
        "kInvalidArgument");
  CHECK(opened == nullptr);
}

TEST_CASE("C: every backend and flag reads the same bytes, also of a model") {
  const Folder folder(true);
  for (std::int32_t backend = SAFETENSORS_MMAP; backend <= SAFETENSORS_DIRECT; ++backend) {
    for (const std::uint32_t flags : {0U, 1U, 2U, 3U}) {
      auto options = test::with_backend(backend);
      options.flags = flags;
      safetensors_file* opened = nullptr;
      REQUIRE(safetensors_open_model(SAFETENSORS_TEXT(folder.text().c_str()), &options, &opened,
                                     nullptr) == SAFETENSORS_OK);
      const test::File model(opened);
      for (const auto& shard : kShards) {
        for (const OwnTensor& each : shard) {
          std::vector<std::byte> bytes(each.bytes.size());
          CHECK(test::read(model.get(), test::find(model, each.name), bytes.data(), bytes.size()) ==
                0);
          CHECK(bytes == each.bytes);
        }
      }
    }
  }
}

TEST_CASE("C: several threads open the files of one model") {
  const Folder folder(true);
  for (int round = 0; round < 20; ++round) {
    safetensors_file* opened = nullptr;
    REQUIRE(folder.open(&opened) == SAFETENSORS_OK);
    const test::File model(opened);
    std::vector<std::thread> threads;
    std::vector<int> right(4);
    for (int& count : right) {
      threads.emplace_back([&] {
        if (&count != &right[0] && !read_at_once(model)) return;
        for (const auto& shard : kShards) {
          for (const OwnTensor& each : shard) {
            safetensors_tensor tensor{};
            std::vector<std::byte> bytes(each.bytes.size());
            if (safetensors_find(model.get(), each.name.data(), each.name.size(), &tensor,
                                 nullptr) == 0 &&
                test::read(model.get(), tensor, bytes.data(), bytes.size()) == 0 &&
                bytes == each.bytes) {
              ++count;
            }
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == std::vector<int>(4, 4));
  }
}
