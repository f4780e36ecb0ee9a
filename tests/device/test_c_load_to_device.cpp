// C: loads to a device of the fake driver.
#include <doctest/doctest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "c_load_support.hpp"
#include "load_support.hpp"
#include "posix_support.hpp"

using test::Config;
using test::FakeDriver;
using test::LoadHandle;
using test::Memory;
using test::named;
using test::Requests;
using test::start;

namespace {

safetensors_load_options to_device(Memory& memory, int index = 0) {
  (void)test::fake_device();  // the library uses the fake driver from here on
  safetensors_load_options options = memory.options();
  options.device = SAFETENSORS_CUDA;
  options.device_index = index;
  return options;
}

}  // namespace

TEST_CASE("C: tensors are loaded to a device, after the work on the caller's stream") {
  const std::vector<test::OwnTensor> tensors = test::model_tensors();
  const std::string bytes = test::file_bytes_of(tensors);
  const test::File file = test::open_memory(bytes);
  for (const fake::Mode mode : {fake::kEager, fake::kAsync, fake::kLazy}) {
    for (const std::uint32_t threads : {0U, 3U}) {
      const FakeDriver driver(mode);
      const Config config({.chunk_nbytes = 4096});
      const test::Current current(1);
      const test::OwnStream stream;
      Memory memory;
      auto options = to_device(memory, 1);
      options.threads = threads;
      options.stream = stream.handle();
      LoadHandle load;
      REQUIRE(start(file, Requests(file).all, &options, load) == SAFETENSORS_OK);
      CHECK(test::numbers_of(load, 4).size() == 4);
      for (const std::size_t i : {0U, 2U, 3U}) CHECK(memory.given[i] == tensors[i].bytes);
      CHECK(fakecuda_stat(fake::kCopiedBytes) == 120 + 600'600 + 8);
      CHECK(fakecuda_stat(fake::kPageableCopies) == 0);
      load.reset();
      CHECK(safetensors_release_staging() > 0);
      CHECK(safetensors_release_staging() == 0);
    }
  }
}

TEST_CASE("C: a device that is absent, fails, or captures") {
  const std::string bytes = test::file_bytes_of(test::model_tensors());
  const test::File file = test::open_memory(bytes);
  const FakeDriver driver(fake::kEager);
  Memory memory;
  LoadHandle load;
  for (const int index : {-1, 7, INT32_MAX}) {
    const auto options = to_device(memory, index);
    CHECK(named(start(file, Requests(file).all, &options, load)) == "kDevice");
  }
  CHECK(memory.order.empty());
  const auto options = to_device(memory);
  fakecuda_capturing(0, 1);
  CHECK(named(start(file, Requests(file).all, &options, load)) == "kInvalidArgument");
  fakecuda_capturing(0, 0);
  for (const char* function : {"cuMemcpyHtoDAsync_v2", "cuEventRecord"}) {
    CAPTURE(function);
    fakecuda_fault(function, 0, 700);
    safetensors_error error{};
    std::int32_t code = start(file, Requests(file).all, &options, load, &error);
    if (code == 0) code = safetensors_load_wait(load.get(), nullptr, &error);
    CHECK(named(code) == "kDevice");
    CHECK(std::string(error.text) != "");
    std::size_t number = 0;
    while (load && code == 0 && number != 4) {
      code = safetensors_load_next(load.get(), &number, nullptr, nullptr);
    }
    CHECK(named(code) == "kDevice");
    load.reset();
    fakecuda_clear();
  }
}

TEST_CASE("C: a forked child can free its parent's load, and nothing else") {
  const std::string bytes = test::file_bytes_of(test::model_tensors());
  const test::File file = test::open_memory(bytes);
  const FakeDriver driver(fake::kLazy);
  const Config config({.chunk_nbytes = 4096});
  for (const bool is_host : {true, false}) {
    Memory memory;
    const auto options = is_host ? memory.options() : to_device(memory);
    LoadHandle load;
    REQUIRE(start(file, Requests(file).all, &options, load) == SAFETENSORS_OK);
    const int status = test::in_child([&] {
      ::alarm(20);  // ends a child that hangs
      std::size_t number = 0;
      if (safetensors_load_next(load.get(), &number, nullptr, nullptr) != 16) return 1;
      if (safetensors_load_wait(load.get(), nullptr, nullptr) != 16) return 2;
      load.reset();
#if !defined(__SANITIZE_THREAD__)  // it starts no threads in a child of a process with threads
      Memory own;
      const auto to_host = own.options();
      if (start(file, Requests(file).all, &to_host, load) != SAFETENSORS_OK) return 3;
      if (safetensors_load_wait(load.get(), nullptr, nullptr) != SAFETENSORS_OK) return 4;
      if (!is_host && start(file, Requests(file).all, &options, load) != SAFETENSORS_DEVICE)
        return 5;
#endif
      return 0;
    });
    CHECK(status == 0);
    CHECK(safetensors_load_wait(load.get(), nullptr, nullptr) == SAFETENSORS_OK);
    CHECK(test::numbers_of(load, 4).size() == 4);
  }
}
