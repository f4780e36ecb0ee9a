// C: opening, finding and reading.
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "c_support.hpp"
#include "hostile_cases.hpp"
#include "safetensors/safe_open.hpp"

using safetensors::SafeOpen;
using test::OwnTensor;

namespace {

bool same(const safetensors_tensor& tensor, const safetensors::TensorInfo& info) {
  return std::string_view(tensor.name, tensor.name_size) == info.name &&
         std::string(tensor.name).size() == tensor.name_size &&
         std::ranges::equal(std::span(tensor.shape, tensor.rank), info.shape) &&
         tensor.nbytes == info.nbytes() && tensor.begin == info.begin &&
         tensor.dtype == static_cast<std::int32_t>(info.dtype);
}

}  // namespace

TEST_CASE("C: the hostile table gives the codes that C++ gives") {
  const test::TempDir folder;
  const std::string path = (folder / "file").string();
  for (const test::HostileCase& hostile : test::read_hostile_cases(SAFETENSORS_HOSTILE_TABLE)) {
    if (hostile.heavy) continue;
    CAPTURE(hostile.name);
    const std::string bytes = hostile.file();
    const test::ExactBytes exact(bytes);
    test::write_text(path, bytes);
    safetensors_error error{};
    for (int way = 0; way < 3; ++way) {
      safetensors_file* file = nullptr;
      const std::int32_t code =
          way == 0 ? safetensors_open_memory(exact.span().data(), bytes.size(), &file, &error)
                   : test::open_code(path, way - 1, &file, &error);
      CHECK(test::named(code) == hostile.expect);
      CHECK(error.code == code);
      CHECK((error.text[0] == '\0') == (code == SAFETENSORS_OK));
      CHECK((file != nullptr) == (code == SAFETENSORS_OK));
      safetensors_close(file);
    }
  }
}

TEST_CASE("C: every way to read a tensor gives the bytes that C++ gives") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const std::string bytes = test::saved(path, tensors);
  const SafeOpen wanted(path);
  for (int way = 0; way < 3; ++way) {
    const test::File file = way == 0 ? test::open_memory(bytes) : test::open(path, way - 1);
    REQUIRE(safetensors_count(file.get()) == tensors.size());
    std::vector<safetensors_tensor> all;
    std::vector<std::vector<std::byte>> memory;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      safetensors_tensor tensor{};
      REQUIRE(safetensors_at(file.get(), i, &tensor, nullptr) == SAFETENSORS_OK);
      const safetensors::TensorInfo& info = wanted.header().tensors()[i];
      CHECK(same(tensor, info));
      CHECK(same(test::find(file, info.name), info));
      const auto own = std::ranges::find(tensors, info.name, &OwnTensor::name);
      CHECK((tensor.data != nullptr) == (way != 2));
      if (tensor.data != nullptr) {
        CHECK(std::ranges::equal(
            std::span(static_cast<const std::byte*>(tensor.data), tensor.nbytes), own->bytes));
      }
      std::vector<std::byte> copy(tensor.nbytes);
      CHECK(test::read(file.get(), tensor, copy.data(), copy.size()) == 0);
      CHECK(copy == own->bytes);
      all.push_back(tensor);
      memory.emplace_back(tensor.nbytes);
    }
    std::vector<safetensors_request> requests;
    for (std::size_t i = 0; i < all.size(); ++i) {
      requests.push_back(
          {&all[i], nullptr, 0, memory[i].data(), memory[i].size(), SAFETENSORS_AS_STORED, 0});
    }
    CHECK(safetensors_read(file.get(), requests.data(), requests.size(), nullptr, nullptr) == 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto own =
          std::ranges::find(tensors, wanted.header().tensors()[i].name, &OwnTensor::name);
      CHECK(memory[i] == own->bytes);
    }
  }
}

TEST_CASE("C: empty tensors of one place are told apart, however many there are") {
  // In the file's order b, z and a, which is not that of the offsets.
  std::string json = R"({"b":{"dtype":"I8","shape":[1],"data_offsets":[1,2]})";
  constexpr int kCount = 20'000;
  for (int i = 0; i < kCount; ++i) {
    json += ",\"z" + std::to_string(i) + R"(":{"dtype":")" + (i % 2 == 0 ? "I8" : "F32") +
            R"(","shape":[0],"data_offsets":[1,1]})";
  }
  json += R"(,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  const std::string bytes = test::file_of(json) + "xy";
  const test::File file = test::open_memory(bytes);
  for (int i = 0; i < kCount; ++i) {
    const safetensors_tensor tensor = test::find(file, "z" + std::to_string(i));
    CHECK(test::read(file.get(), tensor, nullptr, 0) == SAFETENSORS_OK);
  }
  const safetensors_tensor b = test::find(file, "b");
  CHECK(static_cast<const char*>(b.data)[0] == 'y');
}

TEST_CASE("C: a header is parsed without its length field") {
  const std::vector<OwnTensor> tensors = {test::tensor_of("t", safetensors::Dtype::kF32, {4})};
  const auto whole = safetensors::serialize(test::views_of(tensors));
  std::uint64_t length = 0;
  REQUIRE(safetensors_header_length(whole.data(), 8, whole.size(), &length, nullptr) == 0);
  CHECK(length == whole.size() - 8 - 16);
  CHECK(test::named(safetensors_header_length(whole.data(), 3, whole.size(), &length, nullptr)) ==
        "kHeaderTooSmall");
  safetensors_file* opened = nullptr;
  REQUIRE(safetensors_open_header(whole.data() + 8, length, 16, &opened, nullptr) == 0);
  const test::File file(opened);
  const safetensors_tensor tensor = test::find(file, "t");
  CHECK(tensor.begin == 0);
  CHECK(tensor.data == nullptr);
  float values[4];
  CHECK(test::named(test::read(file.get(), tensor, values, sizeof values)) == "kInvalidArgument");
  CHECK(test::named(test::read(file.get(), tensor, values, sizeof values, nullptr,
                               {{SAFETENSORS_ALL, 0, 0, 0, 0}})) == "kInvalidArgument");
  CHECK(test::named(safetensors_open_header(whole.data() + 8, length, 15, &opened, nullptr)) ==
        "kIncompleteData");
}

TEST_CASE("C: the begin of the data and the header's JSON are returned") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::string bytes =
      test::saved(path, {test::tensor_of("t", safetensors::Dtype::kF32, {4})});
  const std::string json = bytes.substr(8, bytes.size() - 8 - 16);
  for (int way = 0; way < 3; ++way) {
    const test::File file = way == 0 ? test::open_memory(bytes) : test::open(path, way - 1);
    REQUIRE(test::info_of(file).header_nbytes == json.size());
    CHECK(test::info_of(file).data_offset == 8 + json.size());
    std::string text(json.size(), '\0');
    const auto fetch = [&](char* to, std::size_t room) {
      return test::named(safetensors_header_json(file.get(), 0, to, room, nullptr));
    };
    CHECK(fetch(text.data(), text.size()) == "ok");
    CHECK(text == json);
    CHECK(fetch(text.data(), text.size() - 1) == "kInvalidArgument");
    CHECK(fetch(nullptr, text.size()) == "kInvalidArgument");
  }
  safetensors_file* opened = nullptr;
  REQUIRE(safetensors_open_header(json.data(), json.size(), 16, &opened, nullptr) == 0);
  const test::File alone(opened);
  CHECK(test::info_of(alone).data_offset == 8 + json.size());
  std::string text(json.size(), '\0');
  CHECK(test::named(safetensors_header_json(alone.get(), 0, text.data(), text.size(), nullptr)) ==
        "kInvalidArgument");
}

TEST_CASE("C: errors name what is at fault, and their text is cut between characters") {
  const test::TempDir folder;
  const std::string missing = (folder / "missing").string();
  safetensors_error error{};
  safetensors_file* opened = nullptr;
  CHECK(test::open_code(missing, SAFETENSORS_MMAP, &opened, &error) == SAFETENSORS_IO);
  CHECK(error.os_error == ENOENT);
  CHECK(std::string(error.text).find(missing) != std::string::npos);
  CHECK(error.text + error.path == missing);
  CHECK(std::string(error.text + error.subject).empty());
  for (const std::string_view path : {std::string_view(), std::string_view("a\0b", 3)}) {
    CHECK(safetensors_open(path.data(), path.size(), nullptr, &opened, &error) ==
          SAFETENSORS_INVALID_ARGUMENT);
    CHECK(error.text == std::string(path.empty() ? "path is empty" : "path contains a NUL"));
    CHECK(std::string(error.text + error.path).empty());
  }
  CHECK(test::named(test::open_code(missing, 4, &opened)) == "kInvalidArgument");
  CHECK(test::named(test::open_code(missing, -1, &opened)) == "kInvalidArgument");
  CHECK(test::named(safetensors_open(nullptr, 1, nullptr, &opened, nullptr)) == "kInvalidArgument");
  CHECK(test::named(test::open_code(missing, SAFETENSORS_MMAP, nullptr)) == "kInvalidArgument");
  CHECK(test::named(safetensors_open_memory(nullptr, 8, &opened, nullptr)) == "kInvalidArgument");
  CHECK(test::named(safetensors_open_memory(nullptr, 0, &opened, nullptr)) == "kHeaderTooSmall");
  CHECK(test::named(safetensors_open_descriptor(-1, SAFETENSORS_TEXT("label"), nullptr, &opened,
                                                nullptr)) == "kIo");
  CHECK(opened == nullptr);

  test::write_text(folder / "f", test::file_of("{}"));
  const test::File file = test::open(folder / "f");
  safetensors_tensor tensor{};
  std::string name = "x";  // so that the cut falls within a character
  for (int i = 0; i < 600; ++i) name += "\xC3\xA9";
  CHECK(safetensors_find(file.get(), name.c_str(), SAFETENSORS_NUL_TERMINATED, &tensor, &error) ==
        SAFETENSORS_TENSOR_NOT_FOUND);
  const std::string text = error.text;
  CHECK(text.starts_with("File does not contain tensor x\xC3\xA9"));
  CHECK((text.size() == sizeof error.text - 1 || text.size() == sizeof error.text - 2));
  CHECK(text.ends_with("\xC3\xA9"));
  CHECK(safetensors_find(file.get(), "", 0, &tensor, &error) == SAFETENSORS_TENSOR_NOT_FOUND);
  CHECK(test::named(safetensors_at(file.get(), 0, &tensor, nullptr)) == "kIndexOutOfBounds");
  // NULL where there could be an answer.
  safetensors_close(nullptr);
  CHECK(safetensors_count(nullptr) == 0);
  CHECK(safetensors_file_count(nullptr) == 0);
  CHECK(safetensors_file_path(nullptr, 0, nullptr) == nullptr);
  CHECK(safetensors_metadata_value(nullptr, 0, "k", 1, nullptr) == nullptr);
}

TEST_CASE("C: many threads use one file") {
  const test::TempDir folder;
  const test::fs::path path = folder / "f";
  const std::vector<OwnTensor> tensors = test::some_tensors();
  (void)test::saved(path, tensors);
  for (const std::int32_t backend : {SAFETENSORS_MMAP, SAFETENSORS_PREAD}) {
    const test::File file = test::open(path, backend);
    std::vector<int> wrong(4);
    std::vector<std::thread> threads;
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) {
          for (const OwnTensor& own : tensors) {
            safetensors_tensor tensor{};
            safetensors_error error{};
            std::vector<std::byte> bytes(own.bytes.size());
            const bool good =
                safetensors_find(file.get(), own.name.c_str(), SAFETENSORS_NUL_TERMINATED, &tensor,
                                 &error) == SAFETENSORS_OK &&
                test::read(file.get(), tensor, bytes.data(), bytes.size(), &error) ==
                    SAFETENSORS_OK &&
                bytes == own.bytes;
            count += good ? 0 : 1;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4));
  }
}
