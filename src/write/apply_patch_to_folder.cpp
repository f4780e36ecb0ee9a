// Writes the files of the model that a patch makes.
#include <string>
#include <utility>

#include "safetensors/detail/recovery.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/model_files.hpp"
#include "safetensors/model_writer.hpp"
#include "write/patch_application.hpp"
#include "write/shard_saves.hpp"

namespace safetensors {
namespace {

/// Returns the file whose name tells that of the output's files.
std::string first_file(const FoundModel& base) {
  const std::filesystem::path file = base.index.empty() ? base.files.front() : base.index;
  return file.filename().string();
}

}  // namespace

void apply_patch_to_folder(const PatchFile& patch, const Model& base,
                           const std::filesystem::path& folder, const ApplyPatchOptions& options) {
  PatchApplication application(patch, base, options);
  const std::size_t count = application.file_count();
  std::vector<std::vector<std::string_view>> names;
  std::vector<LayoutPlan> plans;
  std::uint64_t total_nbytes = 0;
  const auto nbytes_of = [](const LayoutPlan& plan) {
    return plan.total_nbytes - plan.prologue.size();
  };
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(application.names(i));
    plans.push_back(application.plan(i));
    total_nbytes += nbytes_of(plans.back());
  }
  const SaveModelOptions of_model{.name = detail::name_to_save(first_file(base.found())),
                                  .fsync = options.fsync,
                                  .sums = options.sums,
                                  .interrupt = options.interrupt,
                                  .progress = options.progress};
  ShardSaves saves(folder, of_model, count, total_nbytes);
  const auto held = detail::Folder::open(folder);
  detail::refuse_other_models(held, detail::old_names(held, of_model.name));
  for (std::size_t i = 0; i < count; ++i) {
    saves.save(nbytes_of(plans[i]), [&](auto sink, const SaveOptions& of_file, auto& sums) {
      FileWriter writer(std::move(sink), plans[i],
                        {.interrupt = of_file.interrupt, .progress = of_file.progress});
      application.write(i, writer, sums);
      writer.commit();
      sums.commit(false);
    });
  }
  application.finish();
  std::move(saves).commit(names);
}

}  // namespace safetensors
