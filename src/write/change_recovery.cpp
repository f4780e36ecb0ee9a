// Completes changes in place that were interrupted (docs/format.md, "Changes in place").
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "safetensors/detail/private_folders.hpp"
#include "safetensors/detail/recovery.hpp"
#include "safetensors/error.hpp"
#include "write/in_place_file.hpp"
#include "write/journal.hpp"
#include "write/left_record.hpp"

namespace safetensors {
namespace {

using detail::OwnName;

/// Completes the change if one of its files is marked, and removes the journal. Returns whether the
/// files have the new tensors now.
bool recover_change(const Journal& journal, const detail::BeforeOpen& before_open) {
  std::vector<InPlaceFile> files;
  for (const auto& [name, identity] : journal.files()) {
    std::optional<InPlaceFile> file = InPlaceFile::open(journal.folder(), name, before_open);
    if (!file) continue;
    if (file->identity() == identity) {
      files.push_back(*std::move(file));
    } else if (file->is_marked()) {
      refuse_to_follow(journal.path(), name + " was being changed, but by another journal");
    }
  }
  const auto is_marked = [](const InPlaceFile& file) { return file.is_marked(); };
  if (std::ranges::any_of(files, is_marked)) {
    std::vector<const InPlaceFile*> changed;
    for (const InPlaceFile& file : files) {
      if (file.is_marked() || is_known(file, journal)) changed.push_back(&file);
    }
    journal.finish(changed);
    return true;
  }
  // Nothing was changed yet, or everything was.
  const bool is_done = !files.empty() && std::ranges::all_of(files, [&](const InPlaceFile& file) {
    return has_change(file, journal);
  });
  journal.remove();
  return is_done;
}

/// Returns the journal in a private folder; nothing if there is none, or if it is none of ours and
/// was not asked for by name.
std::optional<Journal> journal_in(const detail::Folder& folder, const detail::LeftFolder& left,
                                  bool is_named) {
  try {
    return Journal::open(folder, left.place, left.stem);
  } catch (const Error&) {
    if (is_named) throw;
    return std::nullopt;  // of another program, perhaps
  }
}

}  // namespace

detail::Recovered detail::recover_changes(const Folder& folder, std::span<const std::string> only,
                                          const BeforeOpen& before_open) {
  std::set<OwnName::Text> stems;
  for (const std::string& name : only) stems.insert(OwnName::stem_of(name));
  const auto is_wanted = [&](const OwnName::Text& stem) {
    return only.empty() || stems.contains(stem);
  };
  const PrivateFolders found = private_folders(
      folder, kJournalKind, [](const OwnName::Text&) { return true; },
      [](const OwnName::Text& file) { return file == kJournalPart || file == kNewPart; });
  Recovered result;
  const auto add = [&](Recovery outcome) { result.outcome = std::max(result.outcome, outcome); };
  for (const LeftFolder& left : found.left) {
    const bool is_named = is_wanted(left.stem);
    const std::optional<Journal> journal = journal_in(folder, left, is_named);
    if (journal) {
      const bool is_of = is_named || std::ranges::any_of(journal->files(), [&](const auto& file) {
                           return std::ranges::find(only, file.first) != only.end();
                         });
      if (is_of) {
        add(recover_change(*journal, before_open) ? Recovery::kRolledForward
                                                  : Recovery::kRolledBack);
      }
    } else if (is_named && !is_used(left.place.folder)) {
      folder.remove_private(left.place.name, left.place.folder);
      add(Recovery::kRolledBack);
    }
  }
  for (const ForeignFolder& each : found.foreign) {
    if (is_wanted(each.stem)) result.left_alone.push_back(each.name);
  }
  return result;
}

}  // namespace safetensors
