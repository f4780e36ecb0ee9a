#include "write/journal.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/ascii_text.hpp"
#include "base/display_path.hpp"
#include "base/text.hpp"
#include "io/file_sink.hpp"
#include "io/posix/held_file.hpp"
#include "safetensors/detail/patch_entries.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/error.hpp"
#include "safetensors/sums.hpp"
#include "write/left_record.hpp"

namespace safetensors {
namespace {

using detail::OwnName;

constexpr std::string_view kFormat = "safetensors-journal";
constexpr std::string_view kVersion = "1";

OwnName journal_part() { return OwnName(kJournalPart); }

/// Returns the value of a key of a file's metadata; nothing if it has no such key.
std::optional<std::string_view> value_of_key(const SafeOpen& file, std::string_view wanted) {
  for (const auto& [key, value] : file.metadata()) {
    if (key == wanted) return value;
  }
  return std::nullopt;
}

/// Calls the function with each tensor of a file that the journal changes, and its change.
template <typename Function>
void for_each_change(const InPlaceFile& file, const Journal& journal, const Function& function) {
  for (const TensorInfo& tensor : file.tensors().header().tensors()) {
    if (const auto change = journal.change(tensor)) function(tensor, *change);
  }
}

/// Returns whether `is_fit` is true for all changed tensors of the file and their digests.
template <typename Fits>
bool all_fit(const InPlaceFile& file, const Journal& journal, const Fits& fits) {
  bool is_fit = true;
  for_each_change(file, journal, [&](const TensorInfo& tensor, const JournalChange& change) {
    if (!is_fit) return;
    const Buffer bytes = file.read(tensor);
    is_fit =
        fits(tensor_digest(DigestAlgorithm::kXxh3_128, tensor.dtype, tensor.shape, bytes.bytes()),
             change.patch);
  });
  return is_fit;
}

}  // namespace

Metadata journal_metadata(const std::string& name, const JournalFiles& files) {
  Metadata metadata = {{"format", std::string(kFormat)},
                       {"version", std::string(kVersion)},
                       {"files", text_of_journal_files(files)}};
  if (OwnName::stem_of(name) != name) metadata.emplace("name", name);
  return metadata;
}

std::optional<Journal> Journal::open(const detail::Folder& folder, const detail::OwnPlace& room,
                                     std::string_view stem) {
  const auto held = io::HeldFile::open(room.folder, journal_part(), {});
  if (!held) return std::nullopt;
  return Journal(folder, room,
                 SafeOpen(held->descriptor(), held->path(), {.backend = Backend::kPread}), stem);
}

Journal::Journal(const detail::Folder& folder, detail::OwnPlace room, SafeOpen tensors,
                 std::string_view stem)
    : folder_(folder), room_(std::move(room)), tensors_(std::move(tensors)) {
  if (value_of_key(tensors_, "format") != kFormat ||
      value_of_key(tensors_, "version") != kVersion) {
    refuse_to_follow(path(), "it is not a journal");
  }
  files_ = parse_journal_files(value_of_key(tensors_, "files").value_or(""), path());
  name_ = value_of_key(tensors_, "name").value_or(stem);
  if (!is_file_name(name_) || OwnName::stem_of(name_) != stem) {
    refuse_to_follow(path(),
                     "it is about " + repr_of(name_) + ", and its folder about " + repr_of(stem));
  }
}

std::optional<JournalChange> Journal::change(const TensorInfo& tensor) const {
  if (tensors_.find(detail::record_entry(tensor.name)) == nullptr) return std::nullopt;
  TensorView record = tensors_.get_tensor(detail::record_entry(tensor.name));
  TensorView values = tensors_.get_tensor(detail::values_entry(tensor.name));
  try {
    PatchRecord patch(record.bytes(), values.bytes(), tensor.dtype, DigestAlgorithm::kXxh3_128,
                      std::string(tensor.name));
    if (patch.kind() != PatchKind::kBlocks || patch.codes().add8 != 0 ||
        !std::ranges::equal(patch.shape(), tensor.shape)) {
      refuse_to_follow(path(), "it has another tensor `" + clipped(tensor.name) + "`");
    }
    return JournalChange{std::move(record), std::move(values), std::move(patch)};
  } catch (const Error& error) {
    throw error.with_context({}, path(), std::string(tensor.name));
  }
}

bool has_change(const InPlaceFile& file, const Journal& journal) {
  return all_fit(file, journal, [](const Digest& found, const PatchRecord& patch) {
    return found == patch.target();
  });
}

bool is_known(const InPlaceFile& file, const Journal& journal) {
  return all_fit(file, journal, [](const Digest& found, const PatchRecord& patch) {
    return found == patch.base() || found == patch.target();
  });
}

void Journal::finish(std::span<const InPlaceFile* const> files) const {
  for (const InPlaceFile* const file : files) {  // throws if a record is damaged
    for_each_change(*file, *this, [](const TensorInfo&, const JournalChange&) {});
  }
  remove_sums_of(files);
  for (const InPlaceFile* const file : files) file->set_mark(true);
  for (const InPlaceFile* const file : files) file->flush();
  for (const InPlaceFile* const file : files) {
    for_each_change(*file, *this, [&](const TensorInfo& tensor, const JournalChange& change) {
      const Buffer old = file->read(tensor);
      const Buffer now(old.size());
      std::ranges::copy(old.bytes(), now.data());
      change.patch.overwrite(now.bytes());
      file->write(tensor, old.bytes(), now.bytes());
    });
  }
  for (const InPlaceFile* const file : files) file->flush();
  for (const InPlaceFile* const file : files) {
    if (has_change(*file, *this)) continue;
    fail(ErrorCode::kIo,
         display_path(file->path()) + ": the bytes on the disk are not those written",
         {.path = file->path()});
  }
  for (const InPlaceFile* const file : files) file->set_mark(false);
  for (const InPlaceFile* const file : files) file->flush();
  remove();
}

/// Removes the sums of the files, and of the index that the journal is named after.
void Journal::remove_sums_of(std::span<const InPlaceFile* const> files) const {
  for (const InPlaceFile* const file : files) io::remove_sums({folder_, OwnName(file->name())});
  (void)folder_.remove(OwnName(sums_path(name_).native()));
}

void Journal::remove() const {
  (void)room_.folder.remove(journal_part());
  folder_.remove_private(room_.name, room_.folder);
  folder_.flush();
}

}  // namespace safetensors
