// The journal of a change in place (docs/format.md, "Changes in place"). What is read here may come
// from anyone.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/detail/folder.hpp"
#include "safetensors/header.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/patch.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/tensor_view.hpp"
#include "write/in_place_file.hpp"
#include "write/journal_files.hpp"

namespace safetensors {

/// The kind of the private folder of a journal, and the names of the file in it.
inline constexpr std::string_view kJournalKind = "journal";
inline constexpr std::string_view kJournalPart = "journal";
inline constexpr std::string_view kNewPart = "new";  ///< while it is being written

/// What a journal has for a tensor.
struct JournalChange {
  TensorView record;
  TensorView values;
  PatchRecord patch;  ///< of kind kBlocks, without differences; views the others
};

/// Returns the metadata of a journal. name: what is changed, an index or a file.
[[nodiscard]] Metadata journal_metadata(const std::string& name, const JournalFiles& files);

/// A complete journal. Read by its descriptor, so that it stays the file that was checked.
class Journal {
 public:
  /// Opens the journal in a private folder; nothing if there is none.
  ///
  /// stem: what the name of the private folder has of the name of what is changed.
  /// Throws: Error kInvalidArgument if it is not a journal, or names a file outside of its folder;
  ///   kIo, kNotRegularFile; what SafeOpen throws.
  [[nodiscard]] static std::optional<Journal> open(const detail::Folder& folder,
                                                   const detail::OwnPlace& room,
                                                   std::string_view stem);

  [[nodiscard]] const detail::Folder& folder() const noexcept { return folder_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return tensors_.path(); }
  [[nodiscard]] const JournalFiles& files() const noexcept { return files_; }
  /// Returns what it has for a tensor of a file; nothing if it does not change the tensor.
  ///
  /// Throws: Error kInvalidPatch, kTensorNotFound; kInvalidArgument if the tensor has another
  /// shape.
  [[nodiscard]] std::optional<JournalChange> change(const TensorInfo& tensor) const;

  /// Does what the journal says, and removes it. May be called again after it failed.
  void finish(std::span<const InPlaceFile* const> files) const;
  /// Removes it with its folder. May be called again.
  void remove() const;

 private:
  Journal(const detail::Folder& folder, detail::OwnPlace room, SafeOpen tensors,
          std::string_view stem);
  void remove_sums_of(std::span<const InPlaceFile* const> files) const;

  detail::Folder folder_;
  detail::OwnPlace room_;
  SafeOpen tensors_;
  JournalFiles files_;
  std::string name_;  // of the index, or of the first file
};

/// Returns whether each tensor of the file is as it is after the change.
[[nodiscard]] bool has_change(const InPlaceFile& file, const Journal& journal);

/// Returns whether each tensor of the file is as before the change or as after it.
[[nodiscard]] bool is_known(const InPlaceFile& file, const Journal& journal);

}  // namespace safetensors
