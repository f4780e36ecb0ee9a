// Helpers of the tests of loads through the C interface.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "c_support.hpp"

namespace test {

struct FreeLoad {
  void operator()(safetensors_load* load) const { safetensors_load_free(load); }
};
using LoadHandle = std::unique_ptr<safetensors_load, FreeLoad>;

inline std::vector<OwnTensor> model_tensors() {
  return {tensor_of("a", Dtype::kF32, {6, 5}, 1), tensor_of("b", Dtype::kU8, {0}, 2),
          tensor_of("c", Dtype::kF16, {300, 1001}, 3), tensor_of("d", Dtype::kI64, {}, 4)};
}

/// Requests of the whole tensors of a file, by name, for memory that a callback gives.
struct Requests {
  explicit Requests(const File& file) : tensors(safetensors_count(file.get())) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      REQUIRE(safetensors_at(file.get(), i, &tensors[i], nullptr) == SAFETENSORS_OK);
    }
    std::ranges::sort(tensors, {}, [](const safetensors_tensor& t) { return std::string(t.name); });
    for (const safetensors_tensor& tensor : tensors) {
      all.push_back({&tensor, nullptr, 0, nullptr, 0, SAFETENSORS_AS_STORED, 0});
    }
  }
  std::vector<safetensors_tensor> tensors;
  std::vector<safetensors_request> all;
};

/// Memory of an allocator. Each member changes what its callback does.
struct Memory {
  std::map<std::size_t, std::vector<std::byte>> given;
  std::vector<std::size_t> order;
  std::size_t fails_at = SIZE_MAX;  ///< the number of a request
  std::int32_t failure = 0;         ///< what it returns then; 0: it gives NULL
  std::function<void()> calls;

  static std::int32_t allocate(void* context, std::size_t number, std::uint64_t nbytes, void** to) {
    auto& memory = *static_cast<Memory*>(context);
    memory.order.push_back(number);
    if (memory.calls) memory.calls();
    if (number == memory.fails_at) return memory.failure;
    auto& bytes = memory.given[number];
    bytes.resize(nbytes);
    *to = bytes.data();
    return 0;
  }
  [[nodiscard]] safetensors_load_options options() {
    auto options = sized<safetensors_load_options>();
    options.context = this;
    options.allocate = allocate;
    return options;
  }
};

inline std::int32_t start(const File& file, const std::vector<safetensors_request>& requests,
                          const safetensors_load_options* options, LoadHandle& load,
                          safetensors_error* error = nullptr) {
  safetensors_load* started = nullptr;
  const std::int32_t code = safetensors_load_start(file.get(), requests.data(), requests.size(),
                                                   options, &started, error);
  CHECK((started != nullptr) == (code == SAFETENSORS_OK));
  load.reset(started);
  return code;
}

/// Returns the numbers that a load returns up to its end, sorted.
inline std::vector<std::size_t> numbers_of(const LoadHandle& load, std::size_t count) {
  std::vector<std::size_t> numbers;
  for (std::size_t number = 0;;) {
    REQUIRE(safetensors_load_next(load.get(), &number, nullptr, nullptr) == SAFETENSORS_OK);
    if (number == count) break;
    numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

inline std::string file_bytes_of(const std::vector<OwnTensor>& tensors) {
  return text_of(safetensors::serialize(views_of(tensors)).bytes());
}

inline safetensors_watch watch_of(void* context, std::int32_t (*interrupt)(void*)) {
  auto watch = sized<safetensors_watch>();
  watch.context = context;
  watch.interrupt = interrupt;
  return watch;
}

}  // namespace test
