// Helpers of the tests of the C interface.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "safetensors/safetensors.h"
#include "support.hpp"

namespace test {

struct Close {
  void operator()(safetensors_file* file) const { safetensors_close(file); }
};
using File = std::unique_ptr<safetensors_file, Close>;

/// Returns the name of the code, as name_of() does, or "ok".
inline std::string named(std::int32_t code) {
  return code == SAFETENSORS_OK ? "ok"
                                : std::string(name_of(static_cast<safetensors::ErrorCode>(code)));
}

inline File open(const fs::path& path, std::int32_t backend = SAFETENSORS_MMAP) {
  safetensors_file* file = nullptr;
  REQUIRE(safetensors_open(path.string().c_str(), backend, &file, nullptr) == SAFETENSORS_OK);
  return File(file);
}

inline File open_memory(std::string_view bytes) {
  safetensors_file* file = nullptr;
  REQUIRE(safetensors_open_memory(bytes.data(), bytes.size(), &file, nullptr) == SAFETENSORS_OK);
  return File(file);
}

inline safetensors_tensor find(const File& file, std::string_view name) {
  safetensors_tensor tensor{};
  REQUIRE(safetensors_find(file.get(), name.data(), name.size(), &tensor, nullptr) ==
          SAFETENSORS_OK);
  return tensor;
}

inline std::vector<safetensors_tensor> c_tensors(const std::vector<OwnTensor>& tensors) {
  std::vector<safetensors_tensor> result;
  for (const OwnTensor& t : tensors) {
    result.push_back({t.name.c_str(), t.name.size(), t.shape.data(), t.shape.size(), t.bytes.data(),
                      t.bytes.size(), 0, static_cast<std::int32_t>(t.dtype)});
  }
  return result;
}

inline std::string saved(const fs::path& path, const std::vector<OwnTensor>& tensors) {
  safetensors::save_file(views_of(tensors), path);
  return read_text(path);
}

}  // namespace test
