// C: loads that are stopped, fail, or are used by several threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c_load_support.hpp"

using safetensors::Dtype;
using test::file_bytes_of;
using test::LoadHandle;
using test::Memory;
using test::model_tensors;
using test::OwnTensor;
using test::Requests;
using test::start;
using test::watch_of;

namespace {

/// A source in memory whose reads of data wait until it opens, and may fail.
struct Gate {
  explicit Gate(std::string all) : bytes(std::move(all)) {}

  std::string bytes;
  std::uint64_t data_begin = UINT64_MAX;  ///< reads from here on wait
  std::atomic<bool> is_open{false};
  std::atomic<int> waiting{0};
  safetensors_error failure{};  ///< with a code: what such a read fails with

  [[nodiscard]] test::File open() {
    auto source = test::sized<safetensors_source>();
    source.context = this;
    source.nbytes = bytes.size();
    source.read = read;
    safetensors_file* file = nullptr;
    REQUIRE(safetensors_open_source(&source, SAFETENSORS_TEXT("gate"), nullptr, &file, nullptr) ==
            SAFETENSORS_OK);
    test::File result(file);
    data_begin = test::info_of(result).data_offset;
    return result;
  }
  static std::int64_t read(void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                           safetensors_error* error) {
    auto& gate = *static_cast<Gate*>(context);
    if (offset >= gate.data_begin) {
      ++gate.waiting;
      while (!gate.is_open) std::this_thread::yield();
      if (gate.failure.code != 0) {
        *error = gate.failure;
        return -1;
      }
    }
    std::memcpy(to, gate.bytes.data() + offset, nbytes);
    return static_cast<std::int64_t>(nbytes);
  }
};

}  // namespace

TEST_CASE("C: an interrupt of a wait stops the load; one of next does not") {
  Gate gate(file_bytes_of(model_tensors()));
  const test::File file = gate.open();
  Memory memory;
  const auto options = memory.options();
  LoadHandle load;
  REQUIRE(start(file, Requests(file).all, &options, load) == SAFETENSORS_OK);
  const auto again = watch_of(nullptr, [](void*) -> std::int32_t { return 5; });
  // It opens the gate, for the wait also joins the threads.
  const auto stops = watch_of(&gate, [](void* context) -> std::int32_t {
    static_cast<Gate*>(context)->is_open = true;
    return 6;
  });
  std::size_t number = 77;
  safetensors_error error{};
  REQUIRE(safetensors_load_next(load.get(), &number, &again, &error) == 0);
  CHECK(number == 1);  // the empty tensor is ready at once
  CHECK(safetensors_load_next(load.get(), &number, &again, &error) == SAFETENSORS_STOPPED);
  CHECK(error.detail == 5);
  CHECK(number == 1);
  CHECK(safetensors_load_wait(load.get(), &stops, &error) == SAFETENSORS_STOPPED);
  CHECK(error.detail == 6);
  CHECK(safetensors_load_wait(load.get(), nullptr, &error) == SAFETENSORS_STOPPED);
  CHECK(error.detail == 6);
  std::int32_t code = 0;
  while (code == 0 && number != 4)
    code = safetensors_load_next(load.get(), &number, nullptr, &error);
  if (code != 0) CHECK(error.detail == 6);
}

TEST_CASE("C: threads that take tensors learn the number that stopped the load") {
  for (int i = 0; i < 50; ++i) {
    Gate gate(file_bytes_of(model_tensors()));
    const test::File file = gate.open();
    Memory memory;
    const auto options = memory.options();
    LoadHandle load;
    REQUIRE(start(file, Requests(file).all, &options, load) == SAFETENSORS_OK);
    std::int32_t code = 0;
    safetensors_error found{};
    std::thread other([&] {
      for (std::size_t number = 0; code == 0 && number != 4;) {
        code = safetensors_load_next(load.get(), &number, nullptr, &found);
      }
    });
    const auto stops = watch_of(&gate, [](void* context) -> std::int32_t {
      static_cast<Gate*>(context)->is_open = true;
      return 6;
    });
    while (gate.waiting == 0) std::this_thread::yield();
    const std::int32_t waited = safetensors_load_wait(load.get(), &stops, nullptr);
    other.join();
    CHECK(waited == SAFETENSORS_STOPPED);
    if (code != 0) CHECK(found.detail == 6);
  }
}

TEST_CASE("C: a source that fails ends a load with its code, for each call") {
  for (const std::int32_t code : {SAFETENSORS_IO, SAFETENSORS_STOPPED}) {
    Gate gate(file_bytes_of(model_tensors()));
    gate.is_open = true;
    gate.failure.code = code;
    gate.failure.detail = 42;
    gate.failure.os_error = EACCES;
    const test::File file = gate.open();
    const Requests requests(file);
    Memory memory;
    const auto options = memory.options();
    LoadHandle load;
    REQUIRE(start(file, {requests.all[2]}, &options, load) == SAFETENSORS_OK);
    for (int i = 0; i < 2; ++i) {
      safetensors_error error{};
      std::size_t number = 0;
      CHECK(safetensors_load_next(load.get(), &number, nullptr, &error) == code);
      CHECK(error.detail == (code == SAFETENSORS_STOPPED ? 42 : 0));
      CHECK(safetensors_load_wait(load.get(), nullptr, &error) == code);
      if (code == SAFETENSORS_IO) CHECK(std::string(error.text + error.subject) == "c");
    }
  }
}

TEST_CASE("C: several threads take tensors of a load, and one waits") {
  std::vector<OwnTensor> tensors;
  tensors.reserve(200);
  for (int i = 0; i < 200; ++i) {
    tensors.push_back(test::tensor_of(std::to_string(i), Dtype::kU8, {5000}, 7));
  }
  Gate gate(file_bytes_of(tensors));
  const test::File file = gate.open();
  Memory memory;
  const auto options = memory.options();
  LoadHandle load;
  REQUIRE(start(file, Requests(file).all, &options, load) == SAFETENSORS_OK);
  std::vector<std::atomic<int>> times(tensors.size());
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (std::size_t number = 0;;) {
        if (safetensors_load_next(load.get(), &number, nullptr, nullptr) != 0) ++wrong;
        if (number == tensors.size()) break;
        ++times[number];
      }
    });
  }
  // The second of two that wait is refused, whichever thread that is, and opens the gate.
  std::atomic<int> refused{0};
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const std::int32_t code = safetensors_load_wait(load.get(), nullptr, nullptr);
      if (code == SAFETENSORS_INVALID_ARGUMENT) {
        ++refused;
        gate.is_open = true;
      } else if (code != SAFETENSORS_OK) {
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(refused == 1);
  CHECK(std::ranges::all_of(times, [](const auto& each) { return each == 1; }));
}

TEST_CASE("C: a load that is freed before it is complete writes nothing any more") {
  Gate gate(file_bytes_of(model_tensors()));
  const test::File file = gate.open();
  Memory memory;
  const auto options = memory.options();
  LoadHandle load;
  REQUIRE(start(file, Requests(file).all, &options, load) == SAFETENSORS_OK);
  while (gate.waiting == 0) std::this_thread::yield();
  std::thread opens([&] { gate.is_open = true; });
  load.reset();
  opens.join();
  const auto before = memory.given;
  std::this_thread::yield();
  CHECK(memory.given == before);
}
