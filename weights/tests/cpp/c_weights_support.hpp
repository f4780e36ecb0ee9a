// Helpers of the tests of the weight layer's C interface.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "c_support.hpp"
#include "safetensors/weights.h"

namespace test {

struct CloseWeights {
  void operator()(safetensors_weights* weights) const { safetensors_weights_close(weights); }
};
using Weights = std::unique_ptr<safetensors_weights, CloseWeights>;

struct FreeBuffer {
  void operator()(safetensors_buffer* buffer) const { safetensors_buffer_free(buffer); }
};
using CBuffer = std::unique_ptr<safetensors_buffer, FreeBuffer>;

inline std::string model_path(std::string_view name) {
  return (fs::path(SAFETENSORS_SOURCE_DIR) / "weights" / "tests" / "data" / name).string();
}

inline Weights open_weights(std::string_view name,
                            const safetensors_weights_options* options = nullptr) {
  const std::string path = model_path(name);
  safetensors_weights* weights = nullptr;
  safetensors_error error{};
  (void)safetensors_weights_open(path.data(), path.size(), options, &weights, &error);
  REQUIRE(std::string(error.text).empty());
  return Weights(weights);
}

inline std::int32_t open_weights_code(std::string_view name,
                                      const safetensors_weights_options& options,
                                      safetensors_error* error = nullptr) {
  const std::string path = model_path(name);
  safetensors_weights* weights = nullptr;
  const std::int32_t code =
      safetensors_weights_open(path.data(), path.size(), &options, &weights, error);
  CHECK((weights != nullptr) == (code == 0));
  safetensors_weights_close(weights);
  return code;
}

inline safetensors_weight weight(const Weights& weights, std::string_view name) {
  safetensors_weight found{};
  REQUIRE(safetensors_weights_find(weights.get(), name.data(), name.size(), &found, nullptr) == 0);
  return found;
}

inline CBuffer get(const Weights& weights, std::string_view name) {
  safetensors_buffer* buffer = nullptr;
  REQUIRE(safetensors_weights_get(weights.get(), name.data(), name.size(), nullptr, &buffer,
                                  nullptr) == 0);
  return CBuffer(buffer);
}

inline safetensors_bytes bytes_of(const CBuffer& buffer) {
  safetensors_bytes bytes{};
  REQUIRE(safetensors_buffer_bytes(buffer.get(), &bytes, nullptr) == 0);
  return bytes;
}

/// Returns a text with its size, after comparing the size with the NUL behind it.
inline std::string text(const char* data, std::size_t size) {
  REQUIRE(data != nullptr);
  CHECK(data[size] == '\0');
  return {data, size};
}

}  // namespace test
