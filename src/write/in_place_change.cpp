#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "io/os_error.hpp"
#include "io/posix/fd.hpp"
#include "safetensors/detail/in_place.hpp"
#include "safetensors/detail/model_tensors.hpp"
#include "safetensors/detail/patch_entries.hpp"
#include "safetensors/error.hpp"
#include "safetensors/patch.hpp"
#include "safetensors/writer.hpp"
#include "write/in_place_file.hpp"
#include "write/journal.hpp"

namespace safetensors::detail {

class InPlaceChange::State {
 public:
  State(const Folder& folder, std::span<const std::string> files, std::string name,
        InPlaceOptions options)
      : folder_(folder),
        name_(std::move(name)),
        options_(std::move(options)),
        files_(open(folder, files, options_.before_open)),
        entries_(sorted_entries(headers(), [&](std::size_t i) { return files_[i].path(); })),
        file_of_(headers()) {
    for (const InPlaceFile& file : files_) {
      if (file.is_marked()) {
        refuse_in_place(file.path(), "a change was interrupted, and its journal is gone");
      }
    }
    if (options_.shared) return;
    for (InPlaceFile& file : files_) file.take_lease();
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { abort(); }

  [[nodiscard]] const std::vector<InPlaceFile>& files() const noexcept { return files_; }

  [[nodiscard]] const TensorInfo& at(std::string_view tensor) const {
    const auto found = std::ranges::lower_bound(entries_, tensor, {},
                                                [](const TensorInfo* each) { return each->name; });
    if (found != entries_.end() && (*found)->name == tensor) return **found;
    fail(ErrorCode::kTensorNotFound, "there is no tensor `" + clipped(tensor) + "`",
         {.path = files_.size() == 1 ? files_.front().path() : folder_.path(),
          .subject = std::string(tensor)});
  }

  [[nodiscard]] const InPlaceFile& file_of(const TensorInfo& entry) const {
    return files_[file_of_(&entry)];
  }

  void write(std::string_view tensor, std::span<const std::byte> bytes) {
    const TensorInfo& info = at(tensor);
    const InPlaceFile& file = file_of(info);
    if (bytes.size() != info.nbytes()) {
      fail(ErrorCode::kInvalidArgument,
           display_path(file.path()) + ": tensor `" + clipped(tensor) + "` has " +
               counted(info.nbytes(), "byte") + ", but " + grouped(bytes.size()) + " were given",
           {.path = file.path(), .subject = std::string(tensor)});
    }
    if (options_.interrupt) options_.interrupt();
    EncodedPatch patch;
    {
      const Buffer old = file.read(info);
      patch = encode_patch(info.dtype, info.shape, old.bytes(), bytes, {.set_values = true},
                           options_.interrupt);
    }
    if (patch.changed == 0) return;
    FileWriter& writer = (new_journal_ ? *new_journal_ : begin_journal()).writer;
    add_entry(writer, record_entry(tensor), patch.record);
    add_entry(writer, values_entry(tensor), patch.values);
  }

  void commit() {
    if (!new_journal_) return;
    const Journal journal = complete(*new_journal_);
    new_journal_.reset();  // not removed any more, but by the journal
    try {
      for (const InPlaceFile& file : files_) file.check_lease();
      if (options_.interrupt) options_.interrupt();
    } catch (...) {
      journal.remove();
      throw;
    }
    // From here on, who opens a file with a lease waits until it is marked.
    std::vector<const InPlaceFile*> files;
    files.reserve(files_.size());
    for (const InPlaceFile& file : files_) files.push_back(&file);
    journal.finish(files);
  }

 private:
  /// A journal that is being written, and its private folder.
  struct NewJournal {
    OwnPlace room;
    FileWriter writer;
  };

  static std::vector<InPlaceFile> open(const Folder& folder, std::span<const std::string> names,
                                       const BeforeOpen& before_open) {
    std::vector<InPlaceFile> files;
    for (const std::string& name : names) {
      std::optional<InPlaceFile> file = InPlaceFile::open(folder, name, before_open);
      if (!file) io::fail_os(ENOENT, folder.path() / name);
      files.push_back(*std::move(file));
    }
    return files;
  }

  [[nodiscard]] std::vector<std::span<const TensorInfo>> headers() const {
    std::vector<std::span<const TensorInfo>> headers;
    headers.reserve(files_.size());
    for (const InPlaceFile& file : files_) headers.push_back(file.tensors().header().tensors());
    return headers;
  }

  /// Begins the journal. Its folder is private, because it has tensors of the files: nobody else
  /// may read it who may not read them.
  NewJournal& begin_journal() {
    JournalFiles identities;
    for (const InPlaceFile& file : files_) identities.emplace_back(file.name(), file.identity());
    const Metadata metadata = journal_metadata(name_, identities);
    const OwnPlace room = folder_.make_private(name_, kJournalKind);
    try {
      FileWriter writer(make_part_sink({room.folder, part(kNewPart)}, nullptr, {}), &metadata,
                        {.fsync = true, .interrupt = options_.interrupt});
      return new_journal_.emplace(NewJournal{room, std::move(writer)});
    } catch (...) {
      folder_.remove_private(room.name, room.folder);
      throw;
    }
  }

  static void add_entry(FileWriter& writer, std::string_view name,
                        std::span<const std::byte> bytes) {
    writer.write(writer.add({name, {bytes.size()}, Dtype::kU8}), bytes);
  }

  /// Completes the journal, gives it its name, and flushes that.
  Journal complete(NewJournal& made) const {
    const Folder& room = made.room.folder;
    made.writer.commit();
    room.move(part(kNewPart), {room, part(kJournalPart)});
    room.flush();
    folder_.flush();
    std::optional<Journal> journal = Journal::open(folder_, made.room, OwnName::stem_of(name_));
    if (!journal) io::fail_os(ENOENT, room.path() / std::string(kJournalPart));
    return *std::move(journal);
  }

  void abort() noexcept {
    if (!new_journal_ || !process_.is_this()) return;
    new_journal_->writer.abort();
    folder_.remove_private(new_journal_->room.name, new_journal_->room.folder);
  }

  static OwnName part(std::string_view name) { return OwnName(name); }

  Folder folder_;
  std::string name_;
  InPlaceOptions options_;
  std::vector<InPlaceFile> files_;
  std::vector<const TensorInfo*> entries_;  // of all files, sorted by name
  FileOfEntry file_of_;
  std::optional<NewJournal> new_journal_;  // nothing before the first change, and once complete
  io::OwnProcess process_;
};

InPlaceChange::InPlaceChange(const Folder& folder, std::span<const std::string> files,
                             std::string name, InPlaceOptions options)
    : state_(std::make_unique<State>(folder, files, std::move(name), std::move(options))) {}
InPlaceChange::~InPlaceChange() = default;

std::size_t InPlaceChange::file_count() const noexcept { return state_->files().size(); }
const SafeOpen& InPlaceChange::file(std::size_t index) const noexcept {
  return state_->files()[index].tensors();
}
const TensorInfo& InPlaceChange::at(std::string_view tensor) const { return state_->at(tensor); }
void InPlaceChange::read(std::string_view tensor, std::span<std::byte> to) const {
  const TensorInfo& info = at(tensor);
  state_->file_of(info).tensors().read(info, to);
}
void InPlaceChange::write(std::string_view tensor, std::span<const std::byte> bytes) {
  state_->write(tensor, bytes);
}
void InPlaceChange::commit() { state_->commit(); }

}  // namespace safetensors::detail
