// C: loads to host memory. tests/device/test_c_load_to_device.cpp loads to a fake device.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "c_load_support.hpp"

using test::file_bytes_of;
using test::LoadHandle;
using test::Memory;
using test::model_tensors;
using test::named;
using test::numbers_of;
using test::OwnTensor;
using test::Requests;
using test::start;
using test::watch_of;

namespace {

/// The files of a model in a folder, one for each tensor.
test::File open_shards(const test::TempDir& dir, const std::vector<OwnTensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = "model-0000" + std::to_string(i + 1) + "-of-0000" +
                             std::to_string(tensors.size()) + ".safetensors";
    safetensors::save_file(test::views_of(std::span(tensors).subspan(i, 1)), dir / name);
  }
  safetensors_file* model = nullptr;
  REQUIRE(safetensors_open_model(SAFETENSORS_TEXT(dir.path().string().c_str()), nullptr, &model,
                                 nullptr) == SAFETENSORS_OK);
  return test::File(model);
}

}  // namespace

TEST_CASE("C: a load of a model's files gives each tensor once, in memory of the caller") {
  const std::vector<OwnTensor> tensors = model_tensors();
  const test::TempDir dir;
  test::File model = open_shards(dir, tensors);
  for (const std::uint32_t threads : {0U, 1U, 5U}) {
    Memory memory;
    auto options = memory.options();
    options.threads = threads;
    LoadHandle load;
    Requests requests(model);
    REQUIRE(start(model, requests.all, &options, load) == SAFETENSORS_OK);
    CHECK(memory.order == std::vector<std::size_t>{0, 2, 3});  // an empty tensor needs no memory
    requests.all.clear();
    requests.tensors.clear();
    CHECK(numbers_of(load, 4) == std::vector<std::size_t>{0, 1, 2, 3});
    std::size_t number = 0;
    CHECK(safetensors_load_next(load.get(), &number, nullptr, nullptr) == SAFETENSORS_OK);
    CHECK(number == 4);
    CHECK(safetensors_load_wait(load.get(), nullptr, nullptr) == SAFETENSORS_OK);
    for (const std::size_t i : {0U, 2U, 3U}) CHECK(memory.given[i] == tensors[i].bytes);
  }
  // The file is closed while the load runs.
  Memory memory;
  const auto options = memory.options();
  LoadHandle load;
  REQUIRE(start(model, Requests(model).all, &options, load) == SAFETENSORS_OK);
  model.reset();
  CHECK(safetensors_load_wait(load.get(), nullptr, nullptr) == SAFETENSORS_OK);
  for (const std::size_t i : {0U, 2U, 3U}) CHECK(memory.given[i] == tensors[i].bytes);
}

TEST_CASE("C: only the files of the requests are opened") {
  const std::vector<OwnTensor> tensors = model_tensors();
  const test::TempDir dir;
  open_shards(dir, tensors).reset();
  test::write_text(dir / "model.safetensors.index.json",
                   R"({"weight_map": {"a": "model-00001-of-00004.safetensors",
                                      "c": "model-00003-of-00004.safetensors"}})");
  std::filesystem::remove(dir / "model-00003-of-00004.safetensors");
  safetensors_file* opened = nullptr;
  REQUIRE(safetensors_open_model(SAFETENSORS_TEXT(dir.path().string().c_str()), nullptr, &opened,
                                 nullptr) == SAFETENSORS_OK);
  const test::File model(opened);
  const safetensors_tensor tensor = test::find(model, "a");
  std::vector<std::byte> to(tensor.nbytes);
  const std::vector<safetensors_request> requests = {
      {&tensor, nullptr, 0, to.data(), to.size(), SAFETENSORS_F32, 0}};  // its own dtype
  LoadHandle load;
  REQUIRE(start(model, requests, nullptr, load) == SAFETENSORS_OK);
  CHECK(safetensors_load_wait(load.get(), nullptr, nullptr) == SAFETENSORS_OK);
  CHECK(to == tensors[0].bytes);
}

TEST_CASE("C: a load of parts equals a read of them") {
  const std::vector<OwnTensor> tensors = model_tensors();
  const std::string bytes = file_bytes_of(tensors);
  const test::File file = test::open_memory(bytes);
  const safetensors_tensor tensor = test::find(file, "c");
  using Indices = std::vector<safetensors_index>;
  const Indices rows = {{SAFETENSORS_RANGE, 0, 3, 200, 1}};
  const Indices columns = {{SAFETENSORS_ALL, 0, 0, 0, 0}, {SAFETENSORS_RANGE, 0, 5, 900, 2}};
  const Indices list = {{SAFETENSORS_LIST, 2, 0, 0, 0},
                        {SAFETENSORS_ONE, 0, 7, 0, 0},
                        {SAFETENSORS_RANGE, 0, 1, 3, 1}};
  const Indices none = {{SAFETENSORS_RANGE, 0, 3, 3, 1}};
  std::vector<safetensors_request> requests;
  std::vector<std::vector<std::byte>> wanted;
  for (const Indices* indices : {&rows, &columns, &list, &none}) {
    std::uint64_t shape[4];
    safetensors_tensor part{};
    REQUIRE(safetensors_slice(file.get(), &tensor, indices->data(), indices->size(), shape, &part,
                              nullptr) == SAFETENSORS_OK);
    auto& to = wanted.emplace_back(part.nbytes);
    REQUIRE(test::read(file.get(), tensor, to.data(), to.size(), nullptr, *indices) == 0);
    requests.push_back(
        {&tensor, indices->data(), indices->size(), nullptr, 0, SAFETENSORS_AS_STORED, 0});
  }
  Memory memory;
  const auto options = memory.options();
  LoadHandle load;
  REQUIRE(start(file, requests, &options, load) == SAFETENSORS_OK);
  CHECK(safetensors_load_wait(load.get(), nullptr, nullptr) == SAFETENSORS_OK);
  CHECK(memory.order == std::vector<std::size_t>{0, 1, 2});
  for (std::size_t i = 0; i < 3; ++i) CHECK(memory.given[i] == wanted[i]);
}

TEST_CASE("C: an allocator that fails, gives nothing, or calls the library") {
  const std::string bytes = file_bytes_of(model_tensors());
  const test::File file = test::open_memory(bytes);
  const Requests requests(file);
  for (std::size_t at = 0; at < requests.all.size(); ++at) {
    if (requests.tensors[at].nbytes == 0) continue;
    for (const std::int32_t failure : {-7, 0, 99}) {
      Memory memory;
      memory.fails_at = at;
      memory.failure = failure;
      const auto options = memory.options();
      LoadHandle load;
      safetensors_error error{};
      CHECK(start(file, requests.all, &options, load, &error) ==
            (failure == 0 ? SAFETENSORS_OUT_OF_MEMORY : SAFETENSORS_STOPPED));
      CHECK(error.detail == failure);
      CHECK(memory.order.back() == at);
    }
  }
  Memory inner, outer;
  outer.calls = [&] {
    (void)test::find(file, "d");
    inner.given.clear();
    const auto options = inner.options();
    LoadHandle load;
    REQUIRE(start(file, requests.all, &options, load) == SAFETENSORS_OK);
    CHECK(numbers_of(load, 4).size() == 4);
  };
  const auto options = outer.options();
  LoadHandle load;
  REQUIRE(start(file, requests.all, &options, load) == SAFETENSORS_OK);
  CHECK(numbers_of(load, 4).size() == 4);
  CHECK(outer.given == inner.given);
}

TEST_CASE("C: loads refuse what they cannot do") {
  const std::string bytes = file_bytes_of(model_tensors());
  const test::File file = test::open_memory(bytes);
  const Requests good(file);
  Memory memory;
  LoadHandle load;
  const auto code_of = [&](const auto& change) {
    std::vector<safetensors_request> requests = good.all;
    auto options = memory.options();
    change(requests[0], options);
    return named(start(file, requests, &options, load));
  };
  using Request = safetensors_request;
  using Options = safetensors_load_options;
  std::vector<std::byte> to(200);
  CHECK(code_of([&](Request& r, Options&) { r.to = to.data(); }) == "kInvalidArgument");
  CHECK(code_of([&](Request& r, Options&) { r.room = 120; }) == "kInvalidArgument");
  CHECK(code_of([&](Request&, Options& o) { o.allocate = nullptr; }) == "kInvalidArgument");
  CHECK(code_of([&](Request& r, Options&) { r.dtype = SAFETENSORS_F16; }) == "kInvalidArgument");
  CHECK(code_of([&](Request& r, Options&) { r.dtype = 99; }) == "kUnsupportedDtype");
  CHECK(code_of([&](Request& r, Options&) { r.reserved = 1; }) == "kInvalidArgument");
  CHECK(code_of([&](Request& r, Options&) { r.tensor = nullptr; }) == "kInvalidArgument");
  CHECK(code_of([&](Request& r, Options&) { r.index_count = 1; }) == "kInvalidArgument");
  CHECK(code_of([&](Request&, Options& o) { o.device = 2; }) == "kInvalidArgument");
  CHECK(code_of([&](Request&, Options& o) { o.device_index = 1; }) == "kInvalidArgument");
  CHECK(code_of([&](Request&, Options& o) { o.stream = to.data(); }) == "kInvalidArgument");
  CHECK(code_of([&](Request&, Options& o) { o.reserved = 1; }) == "kInvalidArgument");
  CHECK(code_of([&](Request&, Options& o) { o.size = 7; }) == "kInvalidArgument");
  CHECK(memory.order.empty());
  CHECK(code_of([&](Request&, Options&) {}) == "ok");

  safetensors_load* started = nullptr;
  const safetensors_request* const all = good.all.data();
  CHECK(safetensors_load_start(nullptr, all, 1, nullptr, &started, nullptr) == 16);
  CHECK(safetensors_load_start(file.get(), nullptr, 1, nullptr, &started, nullptr) == 16);
  CHECK(safetensors_load_start(file.get(), all, 1, nullptr, nullptr, nullptr) == 16);
  CHECK(started == nullptr);
  std::size_t number = 0;
  CHECK(safetensors_load_next(nullptr, &number, nullptr, nullptr) == 16);
  CHECK(safetensors_load_next(load.get(), nullptr, nullptr, nullptr) == 16);
  CHECK(safetensors_load_wait(nullptr, nullptr, nullptr) == 16);
  safetensors_watch watch = watch_of(nullptr, nullptr);
  watch.size = 3;
  CHECK(safetensors_load_next(load.get(), &number, &watch, nullptr) == 16);
  CHECK(safetensors_load_wait(load.get(), &watch, nullptr) == 16);
  safetensors_load_free(nullptr);
  CHECK(numbers_of(load, 4).size() == 4);  // none of these took a tensor

  // Nothing to load.
  REQUIRE(start(file, {}, nullptr, load) == SAFETENSORS_OK);
  CHECK(numbers_of(load, 0).empty());
  CHECK(safetensors_load_wait(load.get(), nullptr, nullptr) == SAFETENSORS_OK);
  // A header alone.
  safetensors_file* header = nullptr;
  REQUIRE(safetensors_open_header("{}", 2, 0, &header, nullptr) == SAFETENSORS_OK);
  const test::File alone(header);
  CHECK(named(start(alone, {good.all[0]}, nullptr, load)) == "kInvalidArgument");
}

TEST_CASE("C: progress of loads ends with all bytes") {
  const std::string bytes = file_bytes_of(model_tensors());
  const test::File file = test::open_memory(bytes);
  using Seen = std::vector<std::pair<std::uint64_t, std::uint64_t>>;
  for (const bool waits : {true, false}) {
    Memory memory;
    const auto options = memory.options();
    LoadHandle load;
    REQUIRE(start(file, Requests(file).all, &options, load) == SAFETENSORS_OK);
    Seen seen;
    auto watch = watch_of(&seen, nullptr);
    watch.progress = [](void* context, std::uint64_t done, std::uint64_t total) -> std::int32_t {
      static_cast<Seen*>(context)->emplace_back(done, total);
      return 0;
    };
    if (waits) CHECK(safetensors_load_wait(load.get(), &watch, nullptr) == SAFETENSORS_OK);
    for (std::size_t number = 0; !waits && number != 4;) {
      REQUIRE(safetensors_load_next(load.get(), &number, &watch, nullptr) == SAFETENSORS_OK);
    }
    const std::uint64_t all = 120 + 600'600 + 8;
    REQUIRE_FALSE(seen.empty());
    CHECK(seen.back() == std::pair(all, all));
    CHECK(std::ranges::is_sorted(seen));
  }
}
