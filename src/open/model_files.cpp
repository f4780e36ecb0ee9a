// Finding a model in a local folder. format/model_files.cpp has the rule.
#include "open/model_files.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/display_path.hpp"
#include "open/model_folder.hpp"
#include "open/shard_index.hpp"
#include "safetensors/detail/model_folder.hpp"
#include "safetensors/error.hpp"
#include "safetensors/shard_plan.hpp"

namespace safetensors {
namespace {

namespace fs = std::filesystem;

/// Returns the subfolders with models, as text; nothing if one of them cannot be read.
std::string readable_models_below(const fs::path& folder) {
  try {
    return detail::models_below(folder);
  } catch (const Error&) {
    return {};
  }
}

/// Returns an error that names the folder, and its subfolders with models if it has no file of one.
Error about_folder(const Error& error, const fs::path& folder) {
  std::string below;
  if (error.code() == ErrorCode::kNoModel && error.subject().empty()) {
    below = readable_models_below(folder);
  }
  if (below.empty()) return error.with_context({}, folder);
  return {error.code(), error.what() + ("; " + below), {.path = folder}};
}

using ReadIndex = std::function<ShardIndex(const std::string& index)>;

/// Chooses a model among names, and keeps the content of its index.
FoundModel choose_among(std::vector<std::string> names, const fs::path& folder,
                        const ModelChoice& choice, const ReadIndex& read_index,
                        const std::function<bool(const std::string& file)>& exists) {
  std::optional<ShardIndex> content;
  const FolderQuestions questions{.files_of_index =
                                      [&](const std::string& index) {
                                        content = read_index(index);
                                        return content->files();
                                      },
                                  .exists = exists};
  ModelFiles model = choose_model_files(std::move(names), choice, questions);
  if (model.form != ModelForm::kIndex) content.reset();
  return {std::move(model), folder, std::move(content)};
}

/// Reads an index of a folder. `early` may be null.
ShardIndex read_index_in(const fs::path& folder, const fs::path& index, EarlyOpens* early) {
  if (early == nullptr) return read_index(index, {});
  return read_index(index,
                    [&](const std::string& file) { early->add(folder / path_of_name(file)); });
}

FoundModel found_in(const fs::path& folder, const ModelChoice& choice,
                    const std::optional<std::vector<std::string>>& given, EarlyOpens* early) {
  const ReadIndex read_index = [&](const std::string& index) {
    return read_index_in(folder, folder / path_of_name(index), early);
  };
  const auto exists = [&](const std::string& file) {
    if (given && std::ranges::find(*given, file) != given->end()) return true;
    std::error_code ignored;
    return fs::exists(folder / path_of_name(file), ignored);
  };
  for (;;) {
    const FolderNames names = names_in(folder);
    std::optional<FoundModel> model;
    std::optional<Error> error;
    try {
      model = choose_among(given ? *given : names.files, folder, choice, read_index, exists);
    } catch (const Error& thrown) {
      error = thrown;
    }
    // A complete model, whatever else is being saved.
    const bool is_default = model && model->index == index_file_name("model");
    if (!is_default && !check_saves(folder, names.all, choice, model ? &*model : nullptr)) {
      if (early != nullptr) early->forget();  // the files may be those before a save
      continue;
    }
    if (error) throw about_folder(*error, folder);
    return *std::move(model);
  }
}

}  // namespace

FoundModel find_model_files(const fs::path& path, const ModelChoice& choice,
                            const std::optional<std::vector<std::string>>& names) {
  return find_model_files(path, choice, names, nullptr);
}

FoundModel find_model_files(const fs::path& path, const ModelChoice& choice,
                            const std::optional<std::vector<std::string>>& names,
                            EarlyOpens* early) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) {  // it may be a folder
    fail(ErrorCode::kIo, {},
         {.path = path,
          .os_error = error.default_error_condition().value(),
          .operation = ErrorContext::Operation::kRead});
  }
  if (type == fs::file_type::directory) return found_in(path, choice, names, early);
  if (!choice.name.empty() || !choice.variant.empty()) {
    fail(ErrorCode::kInvalidArgument, "a name or a variant of a model is chosen in a folder only",
         {.path = path});
  }
  FoundModel found;
  found.folder = path.parent_path();
  if (display_path(path.filename()).ends_with(".json")) {
    found.content = read_index_in(found.folder, path, early);
    found.form = ModelForm::kIndex;
    found.index = display_path(path.filename());
    found.files = found.content->files();
  } else {
    found.files = {display_path(path.filename())};
  }
  return found;
}

fs::path ModelSource::path(const std::string& name) const { return folder / path_of_name(name); }

std::shared_ptr<const ByteSource> ModelSource::open_file(const fs::path& path) const {
  const std::size_t start = this->path({}).native().size();
  std::shared_ptr<const ByteSource> opened;
  try {
    if (open) opened = open(display_path(path.native().substr(start)));
  } catch (const Error& error) {
    if (!error.path().empty()) throw;
    throw error.with_context({}, path);
  }
  if (!opened) fail(ErrorCode::kInvalidArgument, "the program opened no file", {.path = path});
  return opened;
}

FoundModel find_model_files(const ModelSource& source, const ModelChoice& choice) {
  std::vector<std::string> names = source.names;
  std::erase_if(names, [](const std::string& name) { return name.find('/') != std::string::npos; });
  const std::set<std::string> present(source.names.begin(), source.names.end());
  try {
    return choose_among(
        std::move(names), source.folder, choice,
        [&](const std::string& index) {
          const fs::path path = source.path(index);
          return ShardIndex::read(*source.open_file(path), path);
        },
        [&](const std::string& file) { return present.contains(file); });
  } catch (const Error& error) {
    throw error.with_context({}, source.folder);
  }
}

fs::path FoundModel::path(std::size_t file) const { return folder / path_of_name(files[file]); }

void FoundModel::check_index() const {
  if (!content || !content->file_id()) return;
  detail::check_index(folder / path_of_name(index), *content->file_id());
}

}  // namespace safetensors
