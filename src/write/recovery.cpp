#include "write/recovery.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "format/model_names.hpp"
#include "io/file_sink.hpp"
#include "io/os_error.hpp"
#include "io/posix/held_file.hpp"
#include "io/posix/rights.hpp"
#include "safetensors/detail/recovery.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/shard_index.hpp"
#include "safetensors/shard_plan.hpp"
#include "safetensors/sums.hpp"
#include "write/left_record.hpp"

namespace safetensors {
namespace {

using detail::Folder;
using detail::ForeignFolder;
using detail::LeftFolder;
using detail::OwnName;
using detail::OwnPlace;
using io::HeldFile;

using IdentityByFile = std::map<std::string, FileIdentity, std::less<>>;

bool same_identity(const FileIdentity& a, const FileIdentity& b, bool has_inodes) {
  return a.nbytes == b.nbytes && a.modified == b.modified && (!has_inodes || a.inode == b.inode);
}

std::optional<FileIdentity> identity_of(const Folder& folder, std::string_view file) {
  const auto found = folder.status(OwnName(file));
  if (!found) return std::nullopt;
  if (found->is_folder) {
    fail(ErrorCode::kNotRegularFile, "this is a folder",
         {.path = folder.path() / std::string(file), .os_error = EISDIR});
  }
  return FileIdentity{found->nbytes, found->modified, found->inode};
}

/// What a roll forward has to do, and what it finds.
struct Places {
  std::vector<std::string> files;  ///< the new ones
  std::map<std::string, std::string, std::less<>>
      waiting;                        ///< new files that wait, and their parts
  std::vector<std::string> outdated;  ///< old files that change or disappear
};

/// Throws if a file in the folder is neither the old one nor the new one.
///
/// Only this user can take a part out of the private folder: one that is not there is in its place.
void check_places(const Folder& folder, const OwnPlace& save, const SwitchRecord& record,
                  const Places& places) {
  const std::filesystem::path path = save.folder.path() / std::string(kSwitchPart);
  std::set<std::string> all(places.files.begin(), places.files.end());
  all.insert(places.outdated.begin(), places.outdated.end());
  const FileIdentities listed = identities(folder, {all.begin(), all.end()});
  const IdentityByFile present(listed.begin(), listed.end());
  const IdentityByFile old(record.old.begin(), record.old.end());
  const auto find = [](const IdentityByFile& files, const std::string& file) {
    const auto its = files.find(file);
    return its == files.end() ? std::optional<FileIdentity>() : its->second;
  };
  const auto found = [&](const std::string& file) {
    const auto part = places.waiting.find(file);
    return part == places.waiting.end() ? find(present, file)
                                        : identity_of(save.folder, part->second);
  };
  // A copy of the folder has other inodes, and so have some file systems when mounted again.
  bool has_inodes = false;
  for (std::size_t i = 0; i < places.files.size() && !has_inodes; ++i) {
    const auto its = found(places.files[i]);
    has_inodes = its && its->inode == record.inodes[i];
  }
  for (const auto& [file, identity] : present) {
    has_inodes = has_inodes || find(old, file) == identity;
  }
  const auto refuse_changed = [&](const std::string& file) {
    refuse_to_follow(path, file + " was changed after the save was interrupted");
  };
  for (std::size_t i = 0; i < places.files.size(); ++i) {
    const std::string& file = places.files[i];
    if (places.waiting.contains(file)) continue;
    const auto now = find(present, file);
    if (!now || (has_inodes && now == find(old, file))) {
      refuse_to_follow(path, "the new " + file + " is missing");
    }
    if (has_inodes && now->inode != record.inodes[i]) refuse_changed(file);
  }
  const auto check_old = [&](const std::string& file) {
    const auto now = find(present, file);
    const auto before = find(old, file);
    if (now && (!before || !same_identity(*now, *before, has_inodes))) refuse_changed(file);
  };
  for (const auto& [file, part] : places.waiting) check_old(file);
  for (const std::string& file : places.outdated) check_old(file);
}

/// Recovers a save that no process may be using.
Recovery recover_save(const Folder& folder, const LeftFolder& left) {
  const Folder& save = left.place.folder;
  const std::filesystem::path path = save.path() / std::string(kSwitchPart);
  const auto file = HeldFile::open(save, OwnName(kSwitchPart), {});
  if (!file) {  // killed before it was made, or after it was removed
    if (folder.remove_empty(left.place.name)) return Recovery::kRolledBack;
    if (detail::is_used(save)) return Recovery::kClean;  // its process makes the switch just now
    roll_back(folder, left.place);
    return Recovery::kRolledBack;
  }
  if (const std::uint64_t nbytes = file->size(); nbytes > kMaxSwitchSize) {
    refuse_to_follow(path,
                     "it has " + grouped(nbytes) + " bytes, more than " + grouped(kMaxSwitchSize));
  }
  const int error = file->lock();
  if (error == EWOULDBLOCK) refuse_busy(folder, left.stem);
  if (error != 0) {
    refuse_to_follow(path, "it cannot be locked: " + std::generic_category().message(error));
  }
  if (file->name_count() == 0) return Recovery::kClean;  // its process has completed it
  const auto record = parse_switch(file->read(kMaxSwitchSize), left.stem, path);
  if (!record) {
    roll_back(folder, left.place);
    return Recovery::kRolledBack;
  }
  roll_forward(folder, left.place, *record, true, {});
  return Recovery::kRolledForward;
}

/// Returns what the private folder may be called that a save of this file has.
std::set<OwnName::Text> save_stems_of(std::string_view file) {
  std::set<OwnName::Text> stems;
  const std::string ends[] = {shard_file_name("", 1, 1), index_file_name("")};
  std::vector<std::string_view> names = {detail::model_of(file)};
  for (const std::string& end : ends) {
    if (file.ends_with(end)) names.push_back(file.substr(0, file.size() - end.size()));
  }
  for (const std::string_view name : names) {
    if (!name.empty() && detail::is_file_of(name, file)) {
      stems.insert(OwnName::stem_of(OwnName::Text(name)));
    }
  }
  return stems;
}

/// Throws if another user is saving one of the models.
void refuse_foreign(const Folder& folder, const std::vector<ForeignFolder>& foreign) {
  for (const ForeignFolder& each : foreign) {
    if (!each.owner) continue;
    const std::filesystem::path path = folder.path() / each.name;
    fail(ErrorCode::kIo,
         display_path(path) + ": user " + io::user_name(*each.owner) + " is saving `" + each.stem +
             "`, or was interrupted: then `safetensors recover` of that user completes it",
         {.path = path});
  }
}

}  // namespace

FileIdentities identities(const Folder& folder, const std::vector<std::string>& files) {
  FileIdentities found;
  for (const std::string& file : files) {
    if (const auto identity = identity_of(folder, file)) found.emplace_back(file, *identity);
  }
  return found;
}

std::vector<LeftFolder> saves_of(const Folder& folder, std::string_view name) {
  const OwnName::Text stem = OwnName::stem_of(OwnName::Text(name));
  detail::PrivateFolders found = detail::private_folders(
      folder, kSaveKind, [&](const OwnName::Text& each) { return each == stem; }, is_switch_part);
  refuse_foreign(folder, found.foreign);
  return std::move(found.left);
}

void recover_model(const Folder& folder, std::string_view name) {
  for (const LeftFolder& each : saves_of(folder, name)) (void)recover_save(folder, each);
}

void roll_forward(const Folder& folder, const OwnPlace& save, const SwitchRecord& record,
                  bool durable, const Interrupt& interrupt) {
  const std::vector<OwnName::Text> names = save.folder.names();
  const std::set<std::string> here(names.begin(), names.end());
  const std::string index = index_file_name(record.name);
  const auto step = [&] {
    if (interrupt) interrupt();
  };
  Places places;
  places.files = switch_targets(record.name, record.shards);
  const std::vector<std::string> parts = switch_parts(record.shards);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (here.contains(parts[i])) places.waiting.emplace(places.files[i], parts[i]);
  }
  const std::set<std::string> targets(places.files.begin(), places.files.end());
  for (const auto& [file, identity] : record.old) {
    if (places.waiting.contains(file) || !targets.contains(file)) places.outdated.push_back(file);
  }
  check_places(folder, save, record, places);

  const auto is_outdated = [&](const std::string& file) {
    return std::ranges::find(places.outdated, file) != places.outdated.end();
  };
  const auto move = [&](std::string_view part, std::string_view file) {
    step();
    save.folder.move(OwnName(part), {folder, OwnName(file)});
  };
  if (!places.waiting
           .empty()) {  // before the first step, after which they would be another model's
    step();
    remove_sums_of(folder, record.name);
    for (const auto& [file, part] : places.waiting) io::remove_sums({folder, OwnName(file)});
    for (const std::string& file : places.outdated) io::remove_sums({folder, OwnName(file)});
  }
  // A reader that finds no index fails; it never combines the shards of two models. An old single
  // file stays until the end: transformers prefers it to an index, and it is whole. Readers of this
  // library see the switch (src/open/model_folder.cpp).
  if (is_outdated(index)) {
    step();
    folder.remove(OwnName(index));
    if (durable) folder.flush();
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (places.waiting.contains(places.files[i])) move(parts[i], places.files[i]);
  }
  for (const std::string& file : places.outdated) {
    if (places.waiting.contains(file) || file == index) continue;
    step();
    folder.remove(OwnName(file));
  }
  for (const std::string& file : record.companions) {
    const std::string part = companion_part(file);
    if (here.contains(part)) move(part, file);
  }
  if (here.contains(std::string(kSumsPart))) {
    move(kSumsPart, sums_path(shard_file_name(record.name, 1, 1)).native());
  }
  if (durable) {
    step();
    folder.flush();
    save.folder.flush();
  }
  step();
  save.folder.remove(OwnName(kSwitchPart));
  folder.remove_private(save.name, save.folder);
}

void roll_back(const Folder& folder, const OwnPlace& save) {
  for (const OwnName::Text& part : save.folder.names()) {
    if (part != kSwitchPart) save.folder.remove(OwnName(part));
  }
  save.folder.remove(OwnName(kSwitchPart));  // last: it says that the folder has been a save
  folder.remove_private(save.name, save.folder);
}

void remove_sums_of(const Folder& folder, std::string_view name) {
  io::remove_sums({folder, OwnName(shard_file_name(name, 1, 1))});
}

void refuse_busy(const Folder& folder, std::string_view name) {
  fail(ErrorCode::kIo,
       display_path(folder.path()) + ": another process is saving `" + std::string(name) + "`",
       {.path = folder.path()});
}

std::filesystem::path absolute_path(const std::filesystem::path& typed) {
  io::check_path(typed);
  if (typed.empty()) io::fail_os(ENOENT, typed);
  const std::filesystem::path path = std::filesystem::absolute(typed);
  std::filesystem::path result = path.root_path();
  for (const std::filesystem::path& part : path.relative_path()) {
    if (!part.empty() && part != ".") result /= part;
  }
  return result;
}

Recovery recover(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path typed = absolute_path(path);
  const bool is_folder = std::filesystem::is_directory(typed, error);
  const std::string file = is_folder ? std::string() : typed.filename().native();
  const Folder folder = Folder::open(is_folder ? typed : typed.parent_path());
  const Recovery outcome = detail::recover_in(folder, file).outcome;
  if (outcome == Recovery::kClean && !is_folder) detail::refuse_unrecovered(folder, file);
  return outcome;
}

void detail::refuse_unrecovered(const Folder& folder, std::string_view file) {
  const std::filesystem::path path = folder.path() / std::string(file);
  const std::string_view name = model_of(file);
  const bool is_index = file.ends_with(index_file_name(""));
  const bool is_single = file.ends_with(detail::kModelFileSuffix);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    const std::vector<OwnName::Text> names = folder.names();
    if (std::ranges::any_of(names, [&](const auto& each) { return is_file_of(name, each); })) {
      return;
    }
  } else if (!is_single && !is_index) {
    return;
  }
  try {
    if (is_index) {
      (void)ShardIndex::read(path);
    } else {
      const SafeOpen opened(path, {.backend = Backend::kPread});
    }
  } catch (const Error& found) {
    if (found.os_error() != 0) throw;
    fail(ErrorCode::kInvalidArgument,
         display_path(path) +
             ": there was nothing to recover, but the file does not open: " + found.what(),
         {.path = path});
  }
}

detail::Recovered detail::recover_in(const Folder& folder, std::string_view file,
                                     const BeforeOpen& before_open) {
  Recovered result = recover_saves(folder, file);
  const auto only = file.empty() ? std::nullopt : std::optional(std::string(file));
  Recovered changes = recover_changes(
      folder, only ? std::span(&*only, 1) : std::span<const std::string>(), before_open);
  result.outcome = std::max(result.outcome, changes.outcome);
  std::ranges::move(changes.left_alone, std::back_inserter(result.left_alone));
  const auto name = file.empty() ? std::nullopt : std::optional(OwnName(file));
  if (folder.remove_stale(name ? &*name : nullptr) > 0) {
    result.outcome = std::max(result.outcome, Recovery::kRolledBack);
  }
  return result;
}

detail::Recovered detail::recover_saves(const Folder& folder, std::string_view file) {
  const std::set<OwnName::Text> stems =
      file.empty() ? std::set<OwnName::Text>() : save_stems_of(file);
  const PrivateFolders found = private_folders(
      folder, kSaveKind,
      [&](const OwnName::Text& stem) { return file.empty() || stems.contains(stem); },
      is_switch_part);
  if (!file.empty()) refuse_foreign(folder, found.foreign);
  Recovered result;
  for (const LeftFolder& each : found.left) {
    result.outcome = std::max(result.outcome, recover_save(folder, each));
  }
  for (const ForeignFolder& each : found.foreign) result.left_alone.push_back(each.name);
  return result;
}

}  // namespace safetensors
