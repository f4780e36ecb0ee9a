#include "write/old_files.hpp"

#include <cerrno>
#include <set>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "io/posix/held_file.hpp"
#include "safetensors/detail/recovery.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"
#include "safetensors/shard_index.hpp"
#include "safetensors/shard_plan.hpp"
#include "write/left_record.hpp"
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
    const std::string text = held->read(kMaxIndexSize + 1);
    if (text.size() > kMaxIndexSize) {
      refuse_to_follow(path, "it has more than " + grouped(kMaxIndexSize) + " bytes");
    }
    try {
      const ShardIndex parsed = ShardIndex::parse(text);
      for (const std::string& file : parsed.files()) {
        if (detail::is_shard_of(name, file)) files.push_back(file);
      }
    } catch (const Error& error) {
      throw error.with_context({}, path);
    }
  }
  return identities(folder, files);
}

std::vector<std::string> detail::old_names(const Folder& folder, std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [file, identity] : old_files(folder, name)) names.push_back(file);
  return names;
}

void detail::refuse_other_models(const Folder& folder, std::string_view name) {
  std::set<std::string> others;
  for (const std::string& file : folder.names()) {
    if (file.find(kModelFileSuffix) == std::string::npos || file.starts_with('.')) continue;
    if (!file.ends_with(kPatchFileSuffix)) others.insert(file);
  }
  for (const std::string& file : old_names(folder, name)) others.erase(file);
  if (others.empty()) return;
  fail(ErrorCode::kIo, "Another model is in the folder",
       {.path = folder.path() / *others.begin(), .os_error = EEXIST});
}

}  // namespace safetensors
