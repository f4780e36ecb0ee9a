// Models that tests save over one another.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "safetensors/model.hpp"
#include "safetensors/model_writer.hpp"
#include "support.hpp"

namespace test {

/// A model, and the limit of its files.
struct SavedModel {
  std::vector<OwnTensor> tensors;
  std::uint64_t max_shard_nbytes;
};

inline SavedModel old_model(std::uint64_t max_shard_nbytes) {
  std::vector<OwnTensor> tensors;
  for (int i = 0; i < 6; ++i) {
    tensors.push_back(tensor_of("layers." + std::to_string(i), Dtype::kF32, {30}, 7));
  }
  tensors.push_back(tensor_of("old", Dtype::kI64, {3}, 7));
  return {std::move(tensors), max_shard_nbytes};
}

inline SavedModel new_model(std::uint64_t max_shard_nbytes) {
  std::vector<OwnTensor> tensors;
  for (int i = 1; i < 8; ++i) {
    tensors.push_back(tensor_of("layers." + std::to_string(i), Dtype::kF32, {30}, 9));
  }
  tensors.push_back(tensor_of("new", Dtype::kU8, {5}, 9));
  return {std::move(tensors), max_shard_nbytes};
}

inline std::vector<fs::path> save(const SavedModel& model, const fs::path& folder,
                                  safetensors::SaveModelOptions options = {}) {
  options.max_shard_nbytes = model.max_shard_nbytes;
  return safetensors::save_model(folder, views_of(model.tensors), nullptr, options);
}

inline std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

/// Returns the content of each file that a save of the model alone makes.
inline std::map<std::string, std::string> files_of(const SavedModel& model) {
  const TempDir folder;
  save(model, folder / "m");
  std::map<std::string, std::string> files;
  for (const std::string& name : names_in(folder / "m")) {
    files.emplace(name, read_text(folder / "m" / name));
  }
  return files;
}

inline std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const std::string& name : names_in(folder)) {
    const bool is_folder = fs::is_directory(folder / name);
    files.emplace(name, is_folder ? std::string("a folder") : read_text(folder / name));
  }
  return files;
}

/// Returns whether the tensors that a reader of the folder finds are those of the model.
inline bool loads(const fs::path& folder, const SavedModel& model) {
  const safetensors::Model found = safetensors::open_model(folder);
  return found.size() == model.tensors.size() &&
         std::ranges::all_of(model.tensors, [&](const OwnTensor& each) {
           const auto view = found.get_tensor(each.name);
           return std::ranges::equal(view.bytes(), each.bytes);
         });
}

}  // namespace test
