// The private folders beside a model, and what killed processes have left of them. For this
// project's own bindings: it may change at any time.
//
//     .model.0123456789abcdef.save/      a save of `model`: its parts
//     .model.0123456789abcdef.journal/   a change in place: its journal
//
// No other user can enter such a folder, so nobody else can plant, swap or read what is in it. What
// else has such a name is not believed: another user may have given it to some folder of this user.
#pragma once

#if !defined(_WIN32)

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "safetensors/detail/folder.hpp"
#include "safetensors/export.hpp"

namespace safetensors::detail {

/// A private folder of this user, which a process uses or has left.
struct LeftFolder {
  OwnName::Text stem;  ///< what it is about: of a long name, a part
  OwnPlace place;      ///< the folder itself, and its name in its parent
};

/// Something else that has the name of a private folder.
struct ForeignFolder {
  OwnName::Text stem;
  OwnName::Text name;
  std::optional<std::uint32_t> owner;  ///< the user, if it is a private folder of another one
};

struct PrivateFolders {
  std::vector<LeftFolder> left;
  std::vector<ForeignFolder> foreign;
};

/// Returns what has the name of a private folder of a kind, sorted by name, for the stems for which
/// `is_wanted` is true. A folder of this user is none of the kind if a file in it has a name for
/// which `is_part` is false.
///
/// Throws: Error kIo.
[[nodiscard]] SAFETENSORS_API PrivateFolders
private_folders(const Folder& folder, std::string_view kind,
                const std::function<bool(const OwnName::Text& stem)>& is_wanted,
                const std::function<bool(const OwnName::Text& file)>& is_part);

/// Returns whether a process may still have a private folder: it has locked the folder, and a file
/// in it while it writes that. Where locks do not show the processes of other machines, one younger
/// than a minute counts, too.
///
/// Throws: Error kIo, kNotRegularFile.
[[nodiscard]] SAFETENSORS_API bool is_used(const Folder& room);

/// Shows other users, who cannot read the files of a private folder, whether the save in it is
/// complete. Does nothing on a file system without the sticky bit.
void show_complete(const Folder& room, bool is_complete) noexcept;

}  // namespace safetensors::detail

#endif
