#include "hf/files.hpp"

#include <utility>

namespace safetensors::weights {

HfFiles find_hf_files(const Files& files, const std::filesystem::path& path,
                      const ModelChoice& choice) {
  HfFiles found;
  found.shards = find_shards(files, path, choice);
  const auto if_there = [&](const char* name) {
    const std::filesystem::path file = found.shards.folder / name;
    return files.has(file) ? file : std::filesystem::path();
  };
  found.config = if_there("config.json");
  found.generation = if_there("generation_config.json");
  return found;
}

HfConfig read_hf_config(const Files& files, const HfFiles& found, const Limits& limits) {
  if (found.config.empty()) return {};
  // As in Python, the last of equal names in an object counts.
  const auto read = [&](const std::filesystem::path& path) {
    return read_json(files, path, Duplicates::last_counts, limits);
  };
  Json config = read(found.config);
  if (found.generation.empty()) return read_hf_config(std::move(config), nullptr, found.config);
  const Json generation = read(found.generation);
  return read_hf_config(std::move(config), &generation, found.config);
}

}  // namespace safetensors::weights
