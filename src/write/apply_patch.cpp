#include "safetensors/apply_patch.hpp"

#include <system_error>

#include "base/text.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/error.hpp"
#include "safetensors/writer.hpp"
#include "write/patch_application.hpp"

namespace safetensors {
namespace {

void apply_patch_to_file(const PatchFile& patch, const Model& base,
                         const std::filesystem::path& path, const ApplyPatchOptions& options) {
  PatchApplication application(patch, base, options);
  const auto sums = detail::sums_of_save(
      path, {.fsync = options.fsync, .sums = options.sums, .interrupt = options.interrupt});
  FileWriter writer(
      make_file_sink(path, {}, options.interrupt, sums->before_rename(path)), application.plan(0),
      {.fsync = options.fsync, .interrupt = options.interrupt, .progress = options.progress});
  application.write(0, writer, *sums);
  application.finish();
  writer.commit();
  sums->commit(options.fsync);
}

/// Returns whether the output is a folder.
bool is_for_folder(const Model& base, const std::filesystem::path& path) {
  if (base.file_count() != 1) {
    if (path.extension() != detail::kModelFileSuffix) return true;
    fail(ErrorCode::kInvalidArgument,
         "the model has " + counted(base.file_count(), "file") + ": the output must be a folder",
         {.path = path});
  }
  std::error_code error;  // what cannot be looked at is no folder: opening it says why
  return !path.has_filename() || std::filesystem::is_directory(path, error);
}

}  // namespace

void apply_patch(const PatchFile& patch, const Model& base, const std::filesystem::path& path,
                 const ApplyPatchOptions& options) {
  if (path.empty() || !is_for_folder(base, path)) {
    apply_patch_to_file(patch, base, path, options);
    return;
  }
#if defined(_WIN32)
  fail(ErrorCode::kInvalidArgument, "a patch is not applied to a folder on Windows",
       {.path = path});
#else
  apply_patch_to_folder(patch, base, path, options);
#endif
}

}  // namespace safetensors
