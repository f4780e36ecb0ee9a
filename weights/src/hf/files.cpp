#include "hf/files.hpp"

#include <system_error>
#include <utility>

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

fs::path if_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? path : fs::path();
}

}  // namespace

HfFiles find_hf_files(const fs::path& path, const ModelChoice& choice) {
  HfFiles files;
  files.shards = find_shards(path, choice);
  const fs::path& folder = files.shards.folder;
  files.config = if_file(folder / "config.json");
  files.generation = if_file(folder / "generation_config.json");
  return files;
}

HfConfig read_hf_config(const HfFiles& files, const Limits& limits) {
  if (files.config.empty()) return {};
  // As in Python, the last of equal names in an object counts.
  Json config = read_json(files.config, Duplicates::last_counts, limits);
  if (files.generation.empty()) return read_hf_config(std::move(config), nullptr, files.config);
  const Json generation = read_json(files.generation, Duplicates::last_counts, limits);
  return read_hf_config(std::move(config), &generation, files.config);
}

}  // namespace safetensors::weights
