#include "write/model_switch.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <set>
#include <utility>

#include "base/display_path.hpp"
#include "io/os_error.hpp"
#include "io/posix/own_file.hpp"
#include "safetensors/error.hpp"
#include "safetensors/shard_plan.hpp"
#include "safetensors/sums.hpp"
#include "write/old_files.hpp"
#include "write/recovery.hpp"

namespace safetensors {
namespace {

using detail::OwnName;

constexpr int kSwitchTries = 100;

}  // namespace

ModelSwitch::ModelSwitch(detail::Folder folder, std::string name, const Interrupt& interrupt)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      parts_(folder_.make_private(name_, kSaveKind)) {
  try {
    if (interrupt) interrupt();
    file_ = make();
    if (file_->lock() == EWOULDBLOCK) refuse_busy(folder_, name_);
    // If two processes make a switch at the same time, at least one sees both and gives up.
    if (has_others() || !parts_.folder.status(OwnName(kSwitchPart))) refuse_busy(folder_, name_);
  } catch (...) {
    const std::exception_ptr cause = std::current_exception();
    try {
      if (!abort()) folder_.remove_private(parts_.name, parts_.folder);  // before it was made
      // NOLINTNEXTLINE(bugprone-empty-catch): what is left is removed by a recovery
    } catch (const Error&) {
    }
    std::rethrow_exception(cause);
  }
}

io::HeldFile ModelSwitch::make() {
  for (int i = 0; i < kSwitchTries; ++i) {
    try {
      const auto sink = detail::make_part_sink({parts_.folder, OwnName(kSwitchPart)}, nullptr, {});
      detail::write_all(*sink, {}, false);
      auto file = io::HeldFile::open(parts_.folder, OwnName(kSwitchPart), {});
      if (file) return *std::move(file);
    } catch (const Error& error) {
      if (error.os_error() != ENOENT) throw;
    }
    // While the folder is empty, a recovery may remove it, and so may another user who may rename
    // it.
    parts_ = folder_.make_private(name_, kSaveKind);
  }
  refuse_busy(folder_, name_);
}

/// Returns whether there are other saves of the model. One without a switch yet will see this one.
bool ModelSwitch::has_others() const {
  return std::ranges::any_of(saves_of(folder_, name_), [&](const detail::LeftFolder& each) {
    return each.place.name.text() != parts_.name.text() &&
           each.place.folder.status(OwnName(kSwitchPart)).has_value();
  });
}

void ModelSwitch::check_shards(std::size_t shards) const {
  for (std::size_t i = 1; i <= shards; ++i) {
    const auto file = io::HeldFile::open(parts_.folder, OwnName(shard_part(i)),
                                         {.writes = false, .owned = false});
    // A sink locks its file until it is committed.
    if (file && file->lock() != EWOULDBLOCK) continue;
    fail(ErrorCode::kInvalidArgument,
         "file " + std::to_string(i) + " of " + std::to_string(shards) +
             " of the model was not made, or its sink was not committed",
         {.path = folder_.path()});
  }
}

void ModelSwitch::commit(std::size_t shards, bool fsync, std::vector<std::string> companions,
                         const Interrupt& interrupt) {
  const auto step = [&] {
    if (interrupt) interrupt();
  };
  const std::string index = index_file_name(name_);
  const std::vector<std::string> parts = switch_parts(shards);
  const FileIdentities made = identities(parts_.folder, parts);
  if (made.size() != parts.size()) {  // or the switch would be one that no recovery can complete
    io::fail_write(ENOENT, parts_.folder.path(), "files of the save have disappeared");
  }
  const std::vector<std::string> targets = switch_targets(name_, shards);
  FileIdentities old = old_files(folder_, name_);
  std::set<std::string, std::less<>> known;
  for (const auto& [file, identity] : old) known.insert(file);
  std::vector<std::string> others = targets;
  std::erase_if(others, [&](const std::string& file) { return known.contains(file); });
  std::ranges::move(identities(folder_, others), std::back_inserter(old));
  check_places(old, targets, companions);
  const bool durable = fsync || !old.empty();
  const bool has_sums = parts_.folder.status(OwnName(kSumsPart)).has_value();
  if (durable) flush_parts(shards, has_sums, companions, interrupt);
  if (shards == 1 && !known.contains(index) && companions.empty()) {  // one rename is atomic
    step();
    remove_sums_of(folder_, name_);
    try {
      parts_.folder.move(OwnName(shard_part(1)), {folder_, OwnName(targets.front())});
    } catch (const Error& error) {
      if (error.os_error() == ESTALE) is_committed_ = true;  // it was moved, and then replaced
      throw;
    }
    is_committed_ = true;
    if (has_sums) {
      parts_.folder.move(OwnName(kSumsPart),
                         {folder_, OwnName(sums_path(targets.front()).native())});
    }
    if (fsync) folder_.flush();
    roll_back(folder_, parts_);
  } else {
    SwitchRecord record{.name = name_, .shards = shards, .old = std::move(old)};
    for (const auto& [part, identity] : made) record.inodes.push_back(identity.inode);
    record.companions = std::move(companions);
    const std::string text = text_of_switch(record);
    step();
    record_ = std::move(record);
    is_durable_ = durable;
    fill(text);
    take_places(*record_, durable, interrupt);
    is_committed_ = true;
  }
  file_.reset();
}

/// Throws if a file cannot take its place, while the old model is whole.
void ModelSwitch::check_places(const FileIdentities& old, const std::vector<std::string>& targets,
                               const std::vector<std::string>& companions) const {
  std::set<std::string> names(targets.begin(), targets.end());
  for (const auto& [file, identity] : old) names.insert(file);
  names.insert(companions.begin(), companions.end());
  names.insert(sums_path(shard_file_name(name_, 1, 1)).native());
  io::check_replaceable(folder_, names);
}

void ModelSwitch::flush_parts(std::size_t shards, bool has_sums,
                              const std::vector<std::string>& companions,
                              const Interrupt& interrupt) const {
  std::vector<std::string> parts = switch_parts(shards);
  for (const std::string& file : companions) parts.push_back(companion_part(file));
  if (has_sums) parts.emplace_back(kSumsPart);
  for (const std::string& part : parts) {
    if (interrupt) interrupt();
    io::flush_file(parts_.folder, OwnName(part));
  }
}

void ModelSwitch::fill(std::string_view text) const {
  if (is_durable_) parts_.folder.flush();  // first: a complete switch says that all parts are there
  if (file_) file_->fill(text);
  detail::show_complete(parts_.folder, true);
  if (is_durable_) {
    if (file_) file_->flush();
    folder_.flush();
  }
}

void ModelSwitch::take_places(const SwitchRecord& record, bool durable,
                              const Interrupt& interrupt) {
  std::exception_ptr cause;
  bool is_refusal = false;  // of the system, which may permit it now
  try {
    roll_forward(folder_, parts_, record, durable, interrupt);
    return;
  } catch (const Error& error) {
    cause = std::current_exception();
    is_refusal = error.os_error() != 0;
  } catch (...) {
    cause = std::current_exception();
  }
  if (is_untouched(record)) std::rethrow_exception(cause);
  // A part of the old model is gone, so only the new one can still become whole.
  is_committed_ = true;
  try {
    roll_forward(folder_, parts_, record, durable, {});
  } catch (const Error& again) {
    // Of another cause than the system's, a recovery fails as well.
    const char* const advice = again.os_error() == 0 ? "" : "; `safetensors recover` completes it";
    fail(ErrorCode::kIncompleteModel,
         display_path(folder_.path()) + ": the files of a save took their places only in part (" +
             again.what() + ")" + advice,
         {.path = folder_.path(), .cause = cause});
  }
  if (!is_refusal) std::rethrow_exception(cause);
}

bool ModelSwitch::abort() {
  std::optional<io::HeldFile> file = std::exchange(file_, std::nullopt);
  if (!file) {
    if (!is_left_) return false;
    // A call before this one failed and released the lock, so that a recovery may have come first.
    file = io::HeldFile::open(parts_.folder, OwnName(kSwitchPart), {});
    if (file && file->lock() == EWOULDBLOCK) refuse_busy(folder_, name_);
  }
  is_left_ = true;
  if (record_ && !is_untouched(*record_)) {
    is_left_ = false;
    return false;
  }
  if (file) file->clear();  // first: from here on, recovery removes the parts, too
  if (record_) {
    // A complete switch without its parts could not be recovered after a power failure.
    if (file && is_durable_) file->flush();
    detail::show_complete(parts_.folder, false);
    record_.reset();
  }
  roll_back(folder_, parts_);
  is_left_ = false;
  return true;
}

bool ModelSwitch::is_untouched(const SwitchRecord& record) const {
  const std::vector<std::string> names = parts_.folder.names();
  const std::set<std::string> here(names.begin(), names.end());
  const std::string index = index_file_name(name_);
  const bool had_index =
      std::ranges::any_of(record.old, [&](const auto& each) { return each.first == index; });
  if (had_index && !folder_.status(OwnName(index))) return false;
  return std::ranges::all_of(switch_parts(record.shards),
                             [&](const std::string& part) { return here.contains(part); });
}

}  // namespace safetensors
