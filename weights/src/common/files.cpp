#include "common/files.hpp"

#include <algorithm>
#include <system_error>

#include "safetensors/weights/error.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_io(const fs::path& path, const std::error_code& error) {
  throw WeightsError(Errc::io, path, {}, 0, error.message(), error.value());
}

}  // namespace

bool Files::is_folder(const fs::path& path) const {
  if (source_ != nullptr) return path == source_->folder;
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) fail_io(path, error);
  return type == fs::file_type::directory;
}

bool Files::has(const fs::path& path) const {
  if (source_ != nullptr) {
    return std::ranges::any_of(
        source_->names, [&](const std::string& name) { return source_->path(name) == path; });
  }
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::vector<fs::path> Files::list(const fs::path& folder) const {
  std::vector<fs::path> paths;
  if (source_ != nullptr) {
    for (const std::string& name : source_->names) {
      if (name.find('/') == std::string::npos) paths.push_back(source_->path(name));
    }
    return paths;
  }
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::error_code ignored;
      if (entry.is_regular_file(ignored)) paths.push_back(entry.path());
    }
  } catch (const fs::filesystem_error& error) {
    fail_io(folder, error.code());
  }
  return paths;
}

FoundModel Files::find_model(const fs::path& path, const ModelChoice& choice) const {
  return source_ != nullptr ? find_model_files(*source_, choice) : find_model_files(path, choice);
}

FileBytes Files::open(const fs::path& path, bool map) const {
  return source_ != nullptr ? FileBytes{source_->open_file(path), nullptr} : open_bytes(path, map);
}

SafeOpen Files::open_safetensors(const fs::path& path, bool map) const {
  if (source_ != nullptr) return SafeOpen(source_->open_file(path), path);
  return SafeOpen(path, {map ? Backend::kMmap : Backend::kPread});
}

}  // namespace safetensors::weights
