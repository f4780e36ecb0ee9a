// The files of sums. format/sums.cpp reads and writes their content.
#include "safetensors/sums.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "io/file_sink.hpp"
#include "io/file_source.hpp"
#include "io/os_error.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"
#include "safetensors/model_files.hpp"

namespace safetensors {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kJsonSuffix = ".json";

/// Returns a path without `suffix`; an empty path if it does not end so, or nothing is left.
fs::path without_suffix(const fs::path& path, std::string_view suffix) {
  const fs::path::string_type& text = path.native();
  if (text.size() <= suffix.size() ||
      !std::equal(suffix.begin(), suffix.end(),
                  text.end() - static_cast<std::ptrdiff_t>(suffix.size()))) {
    return {};
  }
  return text.substr(0, text.size() - suffix.size());
}

fs::path sums_of_stem(fs::path stem) { return stem += kSumsSuffix; }

/// Returns whether the files of a model that has names of this kind share sums.
bool is_numbered(ModelFileName::Kind kind) {
  return kind == ModelFileName::Kind::kShard || kind == ModelFileName::Kind::kRank ||
         kind == ModelFileName::Kind::kPart;
}

/// Removes a file in the folder of a file that has sums, by any path that ends with its name.
/// Returns 0, or the errno.
using Remove = std::function<int(const fs::path&)>;

void remove_file_of_sums(const fs::path& path, const Remove& remove) {
  const int os_error = remove(path);
  if (os_error == 0 || os_error == ENOENT || os_error == ENOTDIR) return;
  std::error_code error;
  const fs::file_status found = fs::symlink_status(path, error);
  // A read-only file system refuses before it looks for the file; a directory is no file of sums.
  if (!error && (!fs::exists(found) || fs::is_directory(found))) return;
  io::fail_write(
      os_error, path,
      "the sums of the old file cannot be removed: " + std::generic_category().message(os_error));
}

/// Returns whether a file of sums has the digests of a file of its folder.
bool is_about(const fs::path& sums, const fs::path& file) {
  std::error_code error;
  const fs::file_status found = fs::status(sums, error);
  if (error && found.type() != fs::file_type::not_found) {
    io::fail_write(error.value(), file,
                   "whether its folder has sums is unknown: " + error.message());
  }
  if (!fs::is_regular_file(found)) return false;
  try {
    const Sums read = Sums::read(sums);
    return std::ranges::any_of(
        read.files(), [&](const FileSums& each) { return each.path == file.filename().string(); });
  } catch (const Error&) {  // no load uses them, either
    return false;
  }
}

}  // namespace

Sums Sums::read(const fs::path& path) {
  const std::unique_ptr<FileSource> source = FileSource::open(path);
  if (source->size() > kMaxSumsSize) {
    fail(ErrorCode::kHeaderTooLarge, "Invalid sums: more than " + grouped(kMaxSumsSize) + " bytes",
         {.path = path});
  }
  std::string text(static_cast<std::size_t>(source->size()), '\0');
  source->read_at(0, std::as_writable_bytes(std::span(text)));
  try {
    return parse(text);
  } catch (const Error& error) {
    throw error.with_context({}, path);
  }
}

std::string sums_name(std::string_view name, std::string_view variant) {
  std::string text(name);
  if (!variant.empty()) text.append(".").append(variant);
  return text.append(kSumsSuffix);
}

fs::path sums_path(const fs::path& file) {
  const std::string name = display_path(file.filename());
  const ModelFileName parsed = parse_model_file_name(name);
  if (parsed.kind == ModelFileName::Kind::kIndex) {
    return file.parent_path() / path_of_name(sums_name(parsed.name, parsed.variant));
  }
  for (const std::string_view suffix : {kJsonSuffix, detail::kModelFileSuffix}) {
    const fs::path stem = without_suffix(file, suffix);
    if (!stem.empty()) return sums_of_stem(stem);
  }
  return sums_of_stem(file);
}

namespace {

/// Returns the paths of the sums that are of a file, or of its model, by their names.
std::vector<fs::path> sums_of(const fs::path& file) {
  std::vector<fs::path> paths = {sums_path(file)};
  const std::string name = display_path(file.filename());
  const ModelFileName parsed = parse_model_file_name(name);
  if (is_numbered(parsed.kind)) {
    paths.push_back(file.parent_path() / path_of_name(sums_name(parsed.name, parsed.variant)));
  }
  return paths;
}

}  // namespace

std::vector<fs::path> sums_paths(const fs::path& file) {
  std::vector<fs::path> paths = sums_of(file);
  const fs::path of_folder = file.parent_path() / kFolderSums;
  if (std::ranges::find(paths, of_folder) == paths.end()) paths.push_back(of_folder);
  return paths;
}

fs::path find_sums(const fs::path& path) {
  if (display_path(path).ends_with(kSumsSuffix)) {
    return path;
  }
  std::error_code error;
  if (!fs::is_directory(path, error)) return sums_path(path);
  const FoundModel model = find_model_files(path);
  if (!model.index.empty()) return sums_path(path / model.index);
  const fs::path own = path / path_of_name(sums_name(model.name, model.variant));
  const fs::path of_folder = path / kFolderSums;
  return fs::exists(own, error) || !fs::exists(of_folder, error) ? own : of_folder;
}

namespace {

void remove_sums_by(const Remove& remove, const fs::path& file) {
  if (without_suffix(file, detail::kModelFileSuffix).empty()) return;
  const std::vector<fs::path> paths = sums_of(file);
  for (const fs::path& path : paths) remove_file_of_sums(path, remove);
  // A folder without an index has sums of all its files, under a name that a model may have, too.
  // They are read by their path, so that a link is followed, and removed by `remove`.
  const fs::path of_folder = file.parent_path() / kFolderSums;
  if (std::ranges::find(paths, of_folder) == paths.end() && is_about(of_folder, file)) {
    remove_file_of_sums(of_folder, remove);
  }
}

}  // namespace

void remove_sums(const fs::path& file) {
  remove_sums_by([](const fs::path& path) { return io::remove_file(path); }, file);
}

void io::remove_sums(const FileWithSums& file) {
#if defined(_WIN32)
  safetensors::remove_sums(file);
#else
  const auto remove = [&](const fs::path& path) {
    try {
      (void)file.folder.remove(detail::OwnName(path.filename().native()));
      return 0;
    } catch (const Error& error) {
      return error.os_error();
    }
  };
  remove_sums_by(remove, file.folder.path() / file.name.text());
#endif
}

void io::remove_late_sums(const FileWithSums& file) noexcept {
  try {
    io::remove_sums(file);
  } catch (const std::exception&) {
    return;  // the file is complete, and must not fail any more
  }
}

}  // namespace safetensors
