// C: models whose files the program opens, by callbacks that also fail, lie or give other files.
#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "c_memory_folder.hpp"
#include "c_support.hpp"
#include "safetensors/sums.hpp"

using safetensors::Dtype;
using test::named;
using test::OwnTensor;

namespace {

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

const std::vector<OwnTensor> kTensors = {test::tensor_of("z", Dtype::kF32, {4, 3}, 1),
                                         test::tensor_of("b", Dtype::kU8, {5}, 2),
                                         test::tensor_of("a", Dtype::kF16, {200, 2}, 3)};

std::string bytes_of(const std::vector<OwnTensor>& tensors) {
  return test::text_of(safetensors::serialize(test::views_of(tensors)).bytes());
}

/// A model of two files in memory.
struct Memory : test::MemoryFolder {
  Memory() {
    files = {{kFirst, bytes_of({kTensors[0], kTensors[1]})}, {kSecond, bytes_of({kTensors[2]})}};
  }
  void add_index() {
    files[kIndex] = R"({"weight_map": {"z": ")" + std::string(kFirst) + R"(", "b": ")" + kFirst +
                    R"(", "a": ")" + kSecond + R"("}})";
  }
  [[nodiscard]] std::int32_t open_model(safetensors_file** model,
                                        safetensors_error* error = nullptr,
                                        const safetensors_options* options = nullptr) {
    const safetensors_model_source given = source();
    return safetensors_open_model_source(&given, SAFETENSORS_TEXT("label"), options, model, error);
  }
};

bool is_read(const safetensors_file* model, const OwnTensor& tensor,
             safetensors_error* error = nullptr) {
  safetensors_tensor found{};
  if (safetensors_find(model, tensor.name.data(), tensor.name.size(), &found, error) != 0) {
    return false;
  }
  std::vector<std::byte> to(static_cast<std::size_t>(found.nbytes));
  return test::read(model, found, to.data(), to.size(), error) == 0 && to == tensor.bytes;
}

}  // namespace

TEST_CASE("C: the program opens each file of a model with an index when it is needed") {
  for (const bool lists_index_only : {false, true}) {
    Memory memory;
    memory.add_index();
    memory.lists_index_only = lists_index_only;
    safetensors_file* model = nullptr;
    REQUIRE(memory.open_model(&model) == SAFETENSORS_OK);
    CHECK(memory.names() == std::vector<std::string>{kIndex});
    CHECK(memory.opened.front().releases == 1);
    CHECK(safetensors_count(model) == 3);
    CHECK(std::string(safetensors_file_path(model, 1, nullptr)) == std::string("label/") + kSecond);
    CHECK(memory.opened.size() == 1);
    for (int i = 0; i < 2; ++i) {  // each file is opened once
      CHECK(is_read(model, kTensors[2]));
      CHECK(memory.names() == std::vector<std::string>{kIndex, kSecond});
    }
    for (const OwnTensor& each : kTensors) CHECK(is_read(model, each));
    CHECK(memory.opened.size() == 3);
    CHECK(memory.releases == 0);
    safetensors_close(model);
    memory.check_released();
  }
}

TEST_CASE("C: without an index, or if the program says so, all files are opened at once") {
  for (const bool with_index : {false, true}) {
    Memory memory;
    if (with_index) memory.add_index();
    memory.files["sub/model.safetensors"] = "of another folder";
    auto options = test::sized<safetensors_options>();
    options.flags = with_index ? SAFETENSORS_OPEN_ALL : 0;
    safetensors_file* model = nullptr;
    REQUIRE(memory.open_model(&model, nullptr, &options) == SAFETENSORS_OK);
    CHECK(memory.opened.size() == (with_index ? 3 : 2));
    for (const OwnTensor& each : kTensors) CHECK(is_read(model, each));
    safetensors_close(model);
    memory.check_released();
  }
  Memory memory;
  memory.files["model.fp16.safetensors"] = bytes_of({kTensors[0]});
  auto options = test::sized<safetensors_options>();
  options.variant = "fp16";
  options.variant_size = SAFETENSORS_NUL_TERMINATED;
  safetensors_file* model = nullptr;
  REQUIRE(memory.open_model(&model, nullptr, &options) == SAFETENSORS_OK);
  CHECK(safetensors_count(model) == 1);
  safetensors_close(model);
  memory.check_released();
}

TEST_CASE("C: files that the program does not have") {
  safetensors_file* model = nullptr;
  safetensors_error error{};
  {
    Memory memory;
    memory.add_index();
    memory.files.erase(kSecond);
    REQUIRE(memory.open_model(&model) == SAFETENSORS_OK);
    CHECK(is_read(model, kTensors[0]));
    CHECK(!is_read(model, kTensors[2], &error));
    CHECK(named(error.code) == "kIncompleteModel");
    CHECK(error.os_error == ENOENT);
    CHECK(std::string(error.text + error.path) == std::string("label/") + kSecond);
    CHECK(std::string(error.text + error.subject) == "a");
    memory.files[kSecond] = bytes_of({kTensors[2]});  // it is asked for again
    CHECK(is_read(model, kTensors[2]));
    safetensors_close(model);
    memory.check_released();
  }
  const auto code_without = [&](const char* file, const std::string& only_index) {
    Memory memory;
    memory.files.erase(file);
    if (!only_index.empty()) memory.files = {{kIndex, only_index}};
    const std::string code = named(memory.open_model(&model, &error));
    memory.check_released();
    CHECK(std::string(error.text).find("label") != std::string::npos);
    return code;
  };
  CHECK(code_without(kFirst, "") == "kIncompleteModel");
  CHECK(code_without("", "{") == "kInvalidHeaderJson");
  CHECK(code_without("", R"({"weight_map": {"a": "../x"}})") == "kInvalidHeaderJson");
  Memory empty;
  empty.files.clear();
  CHECK(named(empty.open_model(&model)) == "kNoModel");
  empty.check_released();
}

TEST_CASE("C: what `open` fails with is the error of the call, which may be made again") {
  for (const char* file : {kIndex, kSecond}) {
    for (const auto& [code, wanted] : {std::pair{0, "kIo"}, std::pair{30, "kDamaged"},
                                       std::pair{1000, "kIo"}, std::pair{-2, ""}}) {
      Memory memory;
      memory.add_index();
      memory.fails_on = file;
      memory.failure.code = code;
      memory.failure.detail = 7;
      safetensors_file* model = nullptr;
      safetensors_error error{};
      const bool is_index = memory.fails_on == kIndex;
      if (is_index) {
        CHECK(memory.open_model(&model, &error) != 0);
      } else {
        REQUIRE(memory.open_model(&model) == 0);
        CHECK(!is_read(model, kTensors[2], &error));
      }
      if (code == SAFETENSORS_STOPPED) {
        CHECK(error.code == SAFETENSORS_STOPPED);
        CHECK(error.detail == 7);
      } else {
        CHECK(named(error.code) == wanted);
        CHECK(std::string(error.text) ==
              "the file was not opened (in label/" + memory.fails_on + ")");
      }
      memory.fails_on.clear();
      if (!is_index) CHECK(is_read(model, kTensors[2]));
      safetensors_close(model);
      memory.check_released();
    }
  }
}

TEST_CASE("C: a file that is not the one that was asked for, or is wrong, gives one error") {
  const auto outcome = [](Memory& memory) {
    memory.add_index();
    safetensors_file* model = nullptr;
    safetensors_error error{};
    REQUIRE(memory.open_model(&model) == 0);
    CHECK(!is_read(model, kTensors[2], &error));
    CHECK(std::string(error.text + error.path) == std::string("label/") + kSecond);
    CHECK(is_read(model, kTensors[0]));
    safetensors_close(model);
    memory.check_released();
    return named(error.code);
  };
  {
    Memory memory;
    memory.files[kSecond] = bytes_of({kTensors[1]});  // of another model
    CHECK(outcome(memory) == "kTensorNotFound");
  }
  {
    Memory memory;
    memory.files[kSecond] = "no safetensors file";
    CHECK(outcome(memory) == "kHeaderTooLarge");
  }
  const auto changed = [](void (*change)(safetensors_source*), int taken) {
    Memory memory;
    memory.change = change;
    safetensors_file* model = nullptr;
    safetensors_error error{};
    CHECK(named(memory.open_model(&model, &error)) == "kInvalidArgument");
    CHECK(std::string(error.text).find("(in label/model-0000") != std::string::npos);
    for (const Memory::Source& each : memory.opened) CHECK(each.releases == taken);
    CHECK(memory.releases == 1);
  };
  changed([](safetensors_source* source) { source->size = 0; }, 0);
  changed([](safetensors_source* source) { source->read = nullptr; }, 0);
  changed([](safetensors_source* source) { source->is_request = 2; }, 1);
  // A member that this library does not know.
  changed(
      [](safetensors_source* source) {
        source->size = sizeof *source + 8;
        reinterpret_cast<unsigned char*>(source)[sizeof *source] = 1;
      },
      0);
}

TEST_CASE("C: several threads use one model of the program's files") {
  for (int round = 0; round < 20; ++round) {
    Memory memory;
    memory.add_index();
    safetensors_file* model = nullptr;
    REQUIRE(memory.open_model(&model) == SAFETENSORS_OK);
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        for (std::size_t k = 0; k < kTensors.size(); ++k) {
          right += is_read(model, kTensors[(k + static_cast<std::size_t>(i)) % kTensors.size()]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == 12);
    CHECK(memory.opened.size() == 3);
    safetensors_close(model);
    memory.check_released();
  }
}

TEST_CASE("C: a load keeps the sources and their folder") {
  Memory memory;
  memory.add_index();
  safetensors_file* model = nullptr;
  REQUIRE(memory.open_model(&model) == SAFETENSORS_OK);
  safetensors_tensor tensor{};
  REQUIRE(safetensors_find(model, "a", 1, &tensor, nullptr) == SAFETENSORS_OK);
  std::vector<std::byte> to(static_cast<std::size_t>(tensor.nbytes));
  const safetensors_request request = {
      &tensor, nullptr, 0, to.data(), to.size(), SAFETENSORS_AS_STORED, 0};
  safetensors_load* load = nullptr;
  REQUIRE(safetensors_load_start(model, &request, 1, nullptr, &load, nullptr) == SAFETENSORS_OK);
  safetensors_close(model);
  CHECK(memory.releases == 0);
  CHECK(safetensors_load_wait(load, nullptr, nullptr) == SAFETENSORS_OK);
  CHECK(to == kTensors[2].bytes);
  safetensors_load_free(load);
  memory.check_released();
}

TEST_CASE("C: the program's files are compared with sums") {
  Memory memory;
  memory.add_index();
  const test::TempDir dir;
  const std::string path = (dir / "model.sums.json").string();
  safetensors::Sums sums;
  for (const char* file : {kFirst, kSecond}) {
    const std::string& bytes = memory.files.at(file);
    const auto of_file =
        safetensors::make_sums(safetensors::MemorySource(std::as_bytes(std::span(bytes))), file);
    (void)sums.add_file(of_file.files().front());
  }
  const auto add = [&](const char* name, const char* file, std::size_t number) {
    const std::string& bytes = memory.files.at(file);
    const auto of_file =
        safetensors::make_sums(safetensors::MemorySource(std::as_bytes(std::span(bytes))), file);
    safetensors::TensorSums tensor = *of_file.find(name);
    tensor.file = number;
    sums.add_tensor(tensor);
  };
  add("a", kSecond, 1);
  add("b", kFirst, 0);
  add("z", kFirst, 0);
  test::write_text(path, sums.json());
  safetensors_sums* opened = nullptr;
  REQUIRE(safetensors_sums_open(path.data(), path.size(), &opened, nullptr) == SAFETENSORS_OK);
  auto options = test::sized<safetensors_options>();
  options.sums = opened;
  memory.files[kSecond].back() ^= 1;
  safetensors_file* model = nullptr;
  REQUIRE(memory.open_model(&model, nullptr, &options) == SAFETENSORS_OK);
  std::size_t count = 0;
  CHECK(safetensors_verify(model, opened, nullptr, nullptr, &count, nullptr, nullptr) == 0);
  CHECK(count == 1);
  safetensors_sums_close(opened);
  safetensors_error error{};
  CHECK(is_read(model, kTensors[0]));
  CHECK(!is_read(model, kTensors[2], &error));
  CHECK(named(error.code) == "kDamaged");
  safetensors_close(model);
  memory.check_released();
}

TEST_CASE("C: a struct of a model's source that is wrong is not taken, other errors release it") {
  Memory memory;
  safetensors_file* model = nullptr;
  CHECK(named(safetensors_open_model_source(nullptr, nullptr, 0, nullptr, &model, nullptr)) ==
        "kInvalidArgument");
  auto source = test::sized<safetensors_model_source>();
  source.context = &memory;
  source.release = [](void* context) { ++static_cast<Memory*>(context)->releases; };
  const auto open = [&](const safetensors_options* options = nullptr) {
    return named(safetensors_open_model_source(&source, nullptr, 0, options, &model, nullptr));
  };
  CHECK(open() == "kInvalidArgument");
  source.open = Memory::open;
  source.size = 3;
  CHECK(open() == "kInvalidArgument");
  CHECK(memory.releases == 0);
  source.size = sizeof source;
  CHECK(open() == "kNoModel");
  source.name_count = 1;
  CHECK(open() == "kInvalidArgument");  // names is NULL
  safetensors_text name = {"model\0.safetensors", 18};
  source.names = &name;
  CHECK(open() == "kInvalidArgument");
  name = {kFirst, SAFETENSORS_NUL_TERMINATED};
  const safetensors_options pread = test::with_backend(SAFETENSORS_PREAD);
  CHECK(open(&pread) == "kInvalidArgument");
  auto options = test::sized<safetensors_options>();
  options.flags = SAFETENSORS_FOR_DEVICE;
  CHECK(open(&options) == "kInvalidArgument");
  CHECK(named(safetensors_open_model_source(&source, nullptr, 0, nullptr, nullptr, nullptr)) ==
        "kInvalidArgument");
  CHECK(named(safetensors_open_model_source(&source, "a\0b", 3, nullptr, &model, nullptr)) ==
        "kInvalidArgument");
  CHECK(memory.releases == 7);
  CHECK(model == nullptr);
}
