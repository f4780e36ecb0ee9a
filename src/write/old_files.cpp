#include "write/old_files.hpp"

#include <string>
#include <vector>

#include "base/display_path.hpp"
#include "io/posix/held_file.hpp"
#include "safetensors/detail/recovery.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"
#include "safetensors/shard_index.hpp"
#include "safetensors/shard_plan.hpp"
#include "write/recovery.hpp"

namespace safetensors {

using detail::Folder;
using detail::OwnName;
using io::HeldFile;

FileIdentities old_files(const Folder& folder, std::string_view name) {
  const std::string index = index_file_name(name);
  std::vector<std::string> files = {index, shard_file_name(name, 1, 1)};
  const auto held = HeldFile::open(folder, OwnName(index), {.writes = false});
  if (held) {
    const std::filesystem::path path = folder.path() / index;
    const ShardIndex parsed = ShardIndex::parse(held->read(kMaxIndexSize + 1), path);
    for (const std::string& file : parsed.files()) {
      if (detail::is_shard_of(name, file)) files.push_back(file);
    }
  }
  return identities(folder, files);
}

std::vector<std::string> detail::old_names(const Folder& folder, std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [file, identity] : old_files(folder, name)) names.push_back(file);
  return names;
}

void detail::refuse_other_models(const Folder& folder, std::span<const std::string> ours) {
  const std::vector<std::string> names = folder.names();
  const std::string_view other = file_of_other_model(names, ours);
  if (other.empty()) return;
  const std::filesystem::path path = folder.path() / other;
  fail(ErrorCode::kSeveralModels,
       display_path(path) + " exists: two models in one folder get mixed up, choose another folder",
       {.path = path});
}

}  // namespace safetensors
