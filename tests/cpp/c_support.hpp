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

/// Returns a struct of options or callbacks with its size, all else 0.
template <typename Struct>
Struct sized() {
  Struct result{};
  result.size = sizeof result;
  return result;
}

inline safetensors_options with_backend(std::int32_t backend) {
  auto options = sized<safetensors_options>();
  options.backend = backend;
  return options;
}

inline safetensors_save_options with_flags(std::uint32_t flags) {
  auto options = sized<safetensors_save_options>();
  options.flags = flags;
  return options;
}

inline safetensors_save_options with_metadata(const safetensors_item* items, std::size_t count,
                                              std::uint32_t flags = 0) {
  safetensors_save_options options = with_flags(flags);
  options.metadata = items;
  options.metadata_count = count;
  return options;
}

inline std::int32_t open_code(const fs::path& path, std::int32_t backend, safetensors_file** file,
                              safetensors_error* error = nullptr) {
  const safetensors_options options = with_backend(backend);
  const std::string text = path.string();
  return safetensors_open(text.data(), text.size(), &options, file, error);
}

inline File open(const fs::path& path, std::int32_t backend = SAFETENSORS_MMAP) {
  safetensors_file* file = nullptr;
  REQUIRE(open_code(path, backend, &file) == SAFETENSORS_OK);
  return File(file);
}

/// Reads a tensor, or what indices select from one.
inline std::int32_t read(const safetensors_file* file, const safetensors_tensor& tensor, void* to,
                         std::uint64_t room, safetensors_error* error = nullptr,
                         const std::vector<safetensors_index>& indices = {},
                         std::int32_t dtype = SAFETENSORS_AS_STORED) {
  const safetensors_request request = {
      &tensor, indices.empty() ? nullptr : indices.data(), indices.size(), to, room, dtype, 0};
  return safetensors_read(file, &request, 1, nullptr, error);
}

/// Returns what a file alone is.
inline safetensors_file_info info_of(const File& file) {
  safetensors_file_info info{};
  REQUIRE(safetensors_file_at(file.get(), 0, &info, nullptr) == SAFETENSORS_OK);
  return info;
}

/// Lifetime: the bytes must outlive the file.
inline File open_memory(std::string_view bytes) {
  safetensors_file* file = nullptr;
  REQUIRE(safetensors_open_memory(bytes.data(), bytes.size(), &file, nullptr) == SAFETENSORS_OK);
  return File(file);
}
File open_memory(std::string&& bytes) = delete;

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
                      t.bytes.size(), 0, static_cast<std::int32_t>(t.dtype), 0});
  }
  return result;
}

inline std::string saved(const fs::path& path, const std::vector<OwnTensor>& tensors) {
  safetensors::save_file(views_of(tensors), path);
  return read_text(path);
}

}  // namespace test
