#include "tensors/shards.hpp"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "safetensors/error.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxOthers = 4;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

FoundModel find_model(const fs::path& path, const ModelChoice& choice) {
  try {
    return find_model_files(path, choice);
  } catch (const safetensors::Error& error) {
    rethrow_core_error(error, path);
  }
}

void check_files(const FoundModel& model, const ShardIndex& index) {
  const fs::path path = model.folder / path_of_name(model.index);
  if (model.files.empty()) fail(Errc::missing_shard, path, "weight_map", "it names no file");
  for (std::size_t number = 0; number < model.files.size(); ++number) {
    if (is_file(model.path(number))) continue;
    std::size_t first = 0;
    while (index.file(first) != number) ++first;
    fail(Errc::missing_shard, path, index.name(first),
         "there is no file `" + clipped(model.files[number]) + "`");
  }
}

std::string others_text(const std::vector<std::string>& others) {
  std::string text;
  for (std::size_t i = 0; i < std::min(others.size(), kMaxOthers); ++i) {
    text += (i == 0 ? " `" : ", `") + clipped(others[i]) + "`";
  }
  return counted(others.size(), "other file") +
         (others.size() == 1 ? " is no part of the model:" : " are no part of the model:") + text +
         (others.size() > kMaxOthers ? ", ..." : "");
}

}  // namespace

FoundModel find_shards(const fs::path& path, const ModelChoice& choice) {
  FoundModel model = find_model(path, choice);
  if (model.form == ModelForm::kRanks) {
    fail(Errc::unsupported, path, {},
         "the files are parts of tensors that ranks saved (`" + clipped(model.files.front()) +
             "`): make one model of them, as by safetensors.dcp.consolidate");
  }
  if (model.content) check_files(model, *model.content);
  if (!model.others.empty()) model.remarks.push_back(others_text(model.others));
  return model;
}

}  // namespace safetensors::weights
