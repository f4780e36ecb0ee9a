#include "tensors/shards.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "safetensors/error.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxOthers = 4;

FoundModel find_model(const Files& files, const fs::path& path, const ModelChoice& choice) {
  try {
    return files.find_model(path, choice);
  } catch (const safetensors::Error& error) {
    rethrow_core_error(error, path);
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

FoundModel find_shards(const Files& files, const fs::path& path, const ModelChoice& choice) {
  FoundModel model = find_model(files, path, choice);
  if (model.form == ModelForm::kRanks) {
    fail(Errc::unsupported, path, {},
         "the files are parts of tensors that ranks saved (`" + clipped(model.files.front()) +
             "`): make one model of them, as by safetensors.dcp.consolidate");
  }
  if (model.files.empty()) {
    fail(Errc::missing_shard, model.folder / path_of_name(model.index), "weight_map",
         "it names no file");
  }
  if (!model.others.empty()) model.remarks.push_back(others_text(model.others));
  return model;
}

}  // namespace safetensors::weights
