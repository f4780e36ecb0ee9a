#include "open/model_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/display_path.hpp"
#include "io/file_source.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/detail/model_folder.hpp"
#include "safetensors/error.hpp"
#include "safetensors/shard_plan.hpp"

namespace safetensors {
namespace {

namespace fs = std::filesystem;
using detail::OwnName;

bool is_hidden(std::string_view name) { return name.starts_with('.'); }

OwnName::Text stem_of(const std::string& name) {
  return OwnName::stem_of(path_of_name(name).native());
}

/// Returns whether there is an index of the model that a save of this stem replaces.
bool has_index(const OwnName::Text& stem, const std::vector<std::string>& names) {
  const std::string suffix = index_file_name("");
  return std::ranges::any_of(names, [&](const std::string& name) {
    if (!name.ends_with(suffix)) return false;
    const std::string model = name.substr(0, name.size() - suffix.size());
    return path_of_name(model).native() == stem ||
           (OwnName::is_shortened(stem) && stem_of(model) == stem);
  });
}

enum class Save : std::uint8_t { kNone, kSwitching, kGone };

/// Returns whether a private folder is that of a save whose list of files is complete.
Save state_of(const fs::path& save) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(save, error);
  if (status.type() == fs::file_type::not_found) return Save::kGone;
#ifdef _WIN32
  const fs::perms others{};  // Windows has access lists, of which the status shows nothing
#else
  const fs::perms others = fs::perms::group_all | fs::perms::others_all;
#endif
  if (status.type() != fs::file_type::directory || (status.permissions() & others) != fs::perms{}) {
    return Save::kNone;  // it is no save
  }
  const fs::path list = save / "switch";
  const fs::file_type type = fs::symlink_status(list, error).type();
  if (error == std::errc::permission_denied) {
    // Another user's, who shows by the sticky bit that the list is complete.
    const bool is_complete = (status.permissions() & fs::perms::sticky_bit) != fs::perms{};
    return is_complete ? Save::kSwitching : Save::kNone;
  }
  if (type == fs::file_type::not_found) return Save::kGone;  // it begins, ends, or was killed then
  if (type != fs::file_type::regular) return Save::kSwitching;
  const std::uintmax_t nbytes = fs::file_size(list, error);
  return !error && nbytes == 0 ? Save::kNone : Save::kSwitching;
}

}  // namespace

FolderNames names_in(const fs::path& folder) {
  FolderNames names;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::error_code ignored;
      std::string name = display_path(entry.path().filename());
      if (entry.is_symlink(ignored) || !entry.is_directory(ignored)) names.files.push_back(name);
      names.all.push_back(std::move(name));
    }
  } catch (const fs::filesystem_error& error) {
    fail(ErrorCode::kIo, {},
         {.path = folder,
          .os_error = error.code().default_error_condition().value(),
          .operation = ErrorContext::Operation::kRead});
  }
  return names;
}

bool check_saves(const fs::path& folder, const std::vector<std::string>& names,
                 const ModelChoice& choice, const ModelFiles* model) {
  for (const std::string& name : names) {
    if (!is_hidden(name) || !name.ends_with(".save")) continue;
    const fs::path path = path_of_name(name);
    const OwnName::Text stem(OwnName::stem_in(path.native(), "save"));
    if (stem.empty() || (!choice.name.empty() && stem != stem_of(choice.name))) continue;
    if (model != nullptr && has_index(stem, names)) continue;
    switch (state_of(folder / path)) {
      case Save::kNone:
        continue;
      case Save::kGone: {
        const auto sorted = [](std::vector<std::string> each) {
          std::ranges::sort(each);
          return each;
        };
        if (sorted(names_in(folder).all) != sorted(names)) return false;
        continue;
      }
      case Save::kSwitching:
        fail(ErrorCode::kIncompleteModel,
             display_path(folder) + ": a save of `" + display_path(fs::path(stem)) +
                 "` was interrupted while its files took their places, or is about to end. "
                 "`safetensors recover` completes it (found " +
                 name + ")",
             {.path = folder});
    }
  }
  return true;
}

namespace detail {

void refuse_interrupted(const fs::path& folder) {
  while (!check_saves(folder, names_in(folder).all, {}, nullptr)) {
  }
}

// A save removes the old index before it changes any other file, and puts the new one into its
// place last. So while the index is the one that was read, so are the files that it leads to.
void check_index(const fs::path& index, const FileId& read) {
  std::optional<FileId> now;
  try {
    now = FileSource::find_id(index);
  } catch (const Error& error) {
    if (error.os_error() != ENOENT) throw;
  }
  if (now == read) return;
  fail(ErrorCode::kFileChanged,
       "the index was replaced or removed while the model was being opened; opening the model "
       "again reads the new one",
       {.path = index});
}

bool has_model_files(const fs::path& folder) {
  constexpr std::string_view kAdapter = "adapter_model";
  return std::ranges::any_of(names_in(folder).files, [&](const std::string& file) {
    if (is_hidden(file)) return false;
    const ModelFileName parsed = parse_model_file_name(file);
    return parsed.kind != ModelFileName::Kind::kOther && parsed.name != kAdapter;
  });
}

std::string models_below(const fs::path& folder) {
  constexpr std::size_t kMaxLooked = 1000;
  constexpr std::size_t kMaxShown = 8;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return {};
  std::vector<std::string> names = names_in(folder).all;
  std::erase_if(names, is_hidden);
  std::ranges::sort(names);
  if (names.size() > kMaxLooked) names.resize(kMaxLooked);
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    const fs::path path = folder / path_of_name(name);
    if (!fs::is_directory(path, ignored) || !has_model_files(path)) continue;
    if (++count > kMaxShown) return text + ", ...";
    text += (count == 1 ? "these folders have some: " : ", ") + display_path(path);
  }
  return text;
}

}  // namespace detail
}  // namespace safetensors
