// Finding a model in a local folder. format/model_files.cpp has the rule.
#include "safetensors/model_files.hpp"

#include <system_error>
#include <utility>

#include "base/display_path.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::directory_entry& entry) {
  std::error_code ignored;
  return !entry.is_symlink(ignored) && entry.is_directory(ignored);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (!is_folder(entry)) names.push_back(display_path(entry.path().filename()));
    }
  } catch (const fs::filesystem_error& error) {
    fail(ErrorCode::kIo, {},
         {.path = folder,
          .os_error = error.code().value(),
          .operation = ErrorContext::Operation::kRead});
  }
  return names;
}

FoundModel found_in(const fs::path& folder, const ModelChoice& choice) {
  std::optional<ShardIndex> content;
  const FolderQuestions questions{
      .files_of_index =
          [&](const std::string& index) {
            content = ShardIndex::read(folder / path_of_name(index));
            return content->files();
          },
      .exists =
          [&](const std::string& file) {
            std::error_code ignored;
            return fs::exists(folder / path_of_name(file), ignored);
          },
  };
  try {
    ModelFiles files = choose_model_files(names_in(folder), choice, questions);
    if (files.form != ModelForm::kIndex) content.reset();
    return {std::move(files), folder, std::move(content)};
  } catch (const Error& error) {
    throw error.with_context({}, folder);
  }
}

}  // namespace

FoundModel find_model_files(const fs::path& path, const ModelChoice& choice) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return found_in(path, choice);
  if (!choice.name.empty() || !choice.variant.empty()) {
    fail(ErrorCode::kInvalidArgument, "a name or a variant of a model is chosen in a folder only",
         {.path = path});
  }
  FoundModel found;
  found.folder = path.parent_path();
  if (path.extension() == ".json") {
    found.content = ShardIndex::read(path);
    found.form = ModelForm::kIndex;
    found.index = display_path(path.filename());
    found.files = found.content->files();
  } else {
    found.files = {display_path(path.filename())};
  }
  return found;
}

fs::path FoundModel::path(std::size_t file) const { return folder / path_of_name(files[file]); }

}  // namespace safetensors
