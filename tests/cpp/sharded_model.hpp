// A model of three shards, for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/tensor_view.hpp"
#include "support.hpp"

namespace test {

inline constexpr const char* kIndexName = "model.safetensors.index.json";

inline std::string shard(std::size_t number, std::size_t total) {
  const auto digits = [](std::size_t value) {
    const std::string text = std::to_string(value);
    return std::string(5 - text.size(), '0') + text;
  };
  return "model-" + digits(number) + "-of-" + digits(total) + ".safetensors";
}

inline std::vector<std::byte> file_with(const std::vector<OwnTensor>& tensors,
                                        const safetensors::Metadata& metadata = {}) {
  const safetensors::Buffer file = safetensors::serialize(views_of(tensors), &metadata);
  return {file.bytes().begin(), file.bytes().end()};
}

inline void save(const fs::path& path, const std::vector<OwnTensor>& tensors,
                 const safetensors::Metadata& metadata = {}) {
  write_text(path, text_of(file_with(tensors, metadata)));
}

using WeightMap = std::vector<std::pair<std::string, std::string>>;

inline std::string index_text(const WeightMap& files) {
  std::string text = R"({"weight_map": {)";
  for (const auto& [name, file] : files) {
    text += (text.ends_with('{') ? "\"" : ", \"") + name + "\": \"" + file + "\"";
  }
  return text + "}}";
}

/// Returns an index that is so large that its files are opened while the rest of it is read.
inline std::string padded(std::string index) {
  index.pop_back();
  index += R"(, "padding": {)";
  for (int i = 0; i < 1100; ++i) {
    index += (i == 0 ? "\"" : ", \"") + std::to_string(i) + "\": \"" + std::string(1000, 'x') + '"';
  }
  return index + "}}";
}

/// Three shards with tensors whose order by name is not that of their files or bytes.
class Sharded {
 public:
  explicit Sharded(bool with_index) {
    WeightMap map;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string file = shard(i + 1, 3);
      save(dir_ / file, tensors_[i], {{"number", std::to_string(i)}});
      for (const OwnTensor& tensor : tensors_[i]) map.emplace_back(tensor.name, file);
    }
    if (with_index) write_index(map);
  }
  void write_index(const WeightMap& map) const { write_text(dir_ / kIndexName, index_text(map)); }

  [[nodiscard]] const fs::path& path() const { return dir_.path(); }
  [[nodiscard]] fs::path file(std::size_t i) const { return dir_ / shard(i + 1, 3); }
  [[nodiscard]] const std::vector<OwnTensor>& tensors(std::size_t i) const { return tensors_[i]; }
  /// Returns all tensors by name, each with the number of its file.
  [[nodiscard]] std::map<std::string, std::pair<std::size_t, const OwnTensor*>> by_name() const {
    std::map<std::string, std::pair<std::size_t, const OwnTensor*>> all;
    for (std::size_t i = 0; i < 3; ++i) {
      for (const OwnTensor& tensor : tensors_[i]) all[tensor.name] = {i, &tensor};
    }
    return all;
  }

 private:
  TempDir dir_;
  std::vector<std::vector<OwnTensor>> tensors_ = {
      {tensor_of("c", safetensors::Dtype::kF32, {6, 4}, 1),
       tensor_of("z", safetensors::Dtype::kU8, {5}, 2)},
      {tensor_of("a", safetensors::Dtype::kBF16, {8, 2}, 3),
       tensor_of("empty", safetensors::Dtype::kU8, {0}, 4),
       tensor_of("y", safetensors::Dtype::kI64, {3}, 5)},
      {tensor_of("b", safetensors::Dtype::kF32, {}, 6)}};
};

inline bool same(const safetensors::TensorView& view, const OwnTensor& tensor) {
  return view.name == tensor.name && view.dtype == tensor.dtype &&
         std::ranges::equal(view.shape, tensor.shape) &&
         std::ranges::equal(view.bytes(), tensor.bytes);
}

inline std::string error_text(const auto& work) { return error_of(work).what(); }

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace test
