// The choice of a model's files among the names in a folder: it is refused with an error, or has
// one set of files that were given. Neither the order of names nor hidden ones change the outcome.
//
// Input: a paragraph of tests/data/model_folders.txt.
#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fuzz_input.hpp"
#include "model_folders.hpp"
#include "safetensors/error.hpp"
#include "safetensors/model_files.hpp"

namespace {

using safetensors::ModelFileName;
using safetensors::ModelFiles;
using safetensors::ModelForm;
using Names = std::vector<std::string>;

/// Chooses, and asks the row what the index names. Throws as choose_model_files().
ModelFiles choose(const test::ModelFolder& row, const Names& names) {
  int asked = 0;
  const safetensors::FolderQuestions questions{
      .files_of_index =
          [&](const std::string& index) {
            fuzz::require(++asked == 1, "an index is read once");
            const auto found = row.indexes.find(index);
            return found == row.indexes.end() ? Names() : found->second;
          },
      .exists = [&](const std::string& file) { return row.there.contains(file); }};
  return safetensors::choose_model_files(names, row.choice, questions);
}

/// Returns all that an outcome says, an error's text included.
std::string outcome(const test::ModelFolder& row, const Names& names) {
  try {
    const ModelFiles model = choose(row, names);
    const Names lines{model.name,  model.variant,
                      model.index, std::to_string(static_cast<int>(model.form)),
                      "files",     test::joined(model.files),
                      "remarks",   test::joined(model.remarks),
                      "others",    test::joined(model.others)};
    return test::joined(lines);
  } catch (const safetensors::Error& error) {
    return error.what();
  }
}

/// Returns whether the file's name says that it is one of the set: of NAME, or of "NAME.VARIANT".
bool is_of(const ModelFileName& file, const ModelFiles& model) {
  if (file.name == model.name && file.variant == model.variant) return true;
  return file.variant.empty() && file.name == model.name + "." + model.variant;
}

void check_set(const ModelFiles& model, const std::set<std::string>& given) {
  using Kind = ModelFileName::Kind;
  fuzz::require((model.form == ModelForm::kIndex) == !model.index.empty(), "an index has a name");
  for (const std::string& file : model.others) {
    fuzz::require(given.contains(file), "other files were given");
    fuzz::require(std::ranges::find(model.files, file) == model.files.end(), "others are not used");
  }
  if (model.form == ModelForm::kIndex) {
    fuzz::require(given.contains(model.index), "the index was given");
    fuzz::require(is_of(safetensors::parse_model_file_name(model.index), model),
                  "the index is that of the model");
    return;  // the index names the files
  }
  const Kind kind = model.form == ModelForm::kFile     ? Kind::kSingle
                    : model.form == ModelForm::kShards ? Kind::kShard
                    : model.form == ModelForm::kRanks  ? Kind::kRank
                                                       : Kind::kPart;
  fuzz::require(!model.files.empty(), "a model has files");
  fuzz::require(kind != Kind::kSingle || model.files.size() == 1, "one file is one");
  std::size_t number = kind == Kind::kShard ? 1 : 0;
  for (const std::string& file : model.files) {
    fuzz::require(given.contains(file) && !file.starts_with('.'), "files were given");
    const ModelFileName parsed = safetensors::parse_model_file_name(file);
    fuzz::require(parsed.kind == kind && is_of(parsed, model), "files are of one set");
    if (kind != Kind::kShard && kind != Kind::kPart) continue;
    fuzz::require(parsed.number == number++, "numbers are complete");
    fuzz::require(kind != Kind::kShard || parsed.total == model.files.size(),
                  "as many as they say");
  }
}

void check_folder(const test::ModelFolder& row) {
  try {
    check_set(choose(row, row.names), std::set<std::string>(row.names.begin(), row.names.end()));
  } catch (const safetensors::Error&) {
    // No model, or several: outcome() has the text.
  }
  const std::string wanted = outcome(row, row.names);
  Names names = row.names;
  std::mt19937 random(1);  // an input always gives the same orders
  for (int i = 0; i < 3; ++i) {
    names.emplace_back(i == 0 ? ".model.safetensors" : ".x-00001-of-00002.safetensors");
    std::ranges::shuffle(names, random);
    fuzz::require(outcome(row, names) == wanted, "the order of names does not matter");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const test::ModelFolder& row : test::read_model_folders(text)) check_folder(row);
  return 0;
}
