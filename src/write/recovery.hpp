// Completes and undoes saves of models: docs/format.md, "Switch".
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/detail/private_folders.hpp"
#include "write/switch_record.hpp"

namespace safetensors {

/// Returns an absolute path without ".", and without a separator at its end. It leads where `typed`
/// does: ".." stays, because the folder before it may be a link.
///
/// Throws: Error kInvalidArgument if it contains a NUL; kIo with ENOENT if it is empty.
[[nodiscard]] std::filesystem::path absolute_path(const std::filesystem::path& typed);

/// The kind of the private folder of a save.
inline constexpr std::string_view kSaveKind = "save";

/// Returns the identities of those files that exist. Throws: Error kIo; kNotRegularFile for a
/// folder.
[[nodiscard]] FileIdentities identities(const detail::Folder& folder,
                                        const std::vector<std::string>& files);

/// Returns the private folders of saves of a model. Throws: Error kIo if one is another user's.
[[nodiscard]] std::vector<detail::LeftFolder> saves_of(const detail::Folder& folder,
                                                       std::string_view name);

/// Completes or undoes the saves of a model that were interrupted.
///
/// Throws: as safetensors::recover().
void recover_model(const detail::Folder& folder, std::string_view name);

/// Does what of the switch has not been done, and removes the private folder.
///
/// interrupt: called before each change.
/// Throws: Error kInvalidArgument if a file is neither the old one nor the new one; kIo; what
///   `interrupt` throws.
void roll_forward(const detail::Folder& folder, const detail::OwnPlace& save,
                  const SwitchRecord& record, bool durable, const Interrupt& interrupt);

/// Removes the private folder of a save, whose switch is incomplete. Throws: Error kIo.
void roll_back(const detail::Folder& folder, const detail::OwnPlace& save);

/// Removes the sums of a model that is about to change. Throws: Error kIo.
void remove_sums_of(const detail::Folder& folder, std::string_view name);

/// Throws Error kIo: another process is saving the model.
[[noreturn]] void refuse_busy(const detail::Folder& folder, std::string_view name);

}  // namespace safetensors
