#include "safetensors/model_files.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "format/model_names.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

// The names that libraries give to models, in the order of the rule.
constexpr std::array<std::string_view, 2> kUsualNames = {"model", "diffusion_pytorch_model"};
// Names that have variants even where the plain file is absent.
constexpr std::array<std::string_view, 3> kNamesWithVariants = {"model", "diffusion_pytorch_model",
                                                                "pytorch_model"};
constexpr std::size_t kMaxListed = 4;

struct NumberedFile {
  std::size_t number;
  std::string file;
  auto operator<=>(const NumberedFile&) const = default;
};

/// All files with one name and variant, of which at most one form is the model.
struct FileSet {
  std::string single{};
  std::vector<std::string> indexes{};
  std::map<std::size_t, std::vector<NumberedFile>> shards{};  // by their total
  std::vector<std::string> ranks{};
  std::vector<NumberedFile> parts{};

  /// Returns the file that stands for the set in texts.
  [[nodiscard]] const std::string& example() const {
    if (!single.empty()) return single;
    if (!indexes.empty()) return indexes.front();
    if (!shards.empty()) return shards.begin()->second.front().file;
    return ranks.empty() ? parts.front().file : ranks.front();
  }
  /// Returns whether a file says by itself what the set is. Shards do so only together.
  [[nodiscard]] bool is_stated() const { return !single.empty() || !indexes.empty(); }
};

using Variants = std::map<std::string, FileSet, std::less<>>;  // "" is the plain set
using Models = std::map<std::string, Variants, std::less<>>;   // by name

std::string double_quoted(std::string_view text) { return "\"" + clipped(text) + "\""; }

/// Returns the first items, and how many more there are.
std::string listed(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kMaxListed); ++i) {
    text += (i == 0 ? "" : ", ") + items[i];
  }
  if (items.size() > kMaxListed) text += " and " + grouped(items.size() - kMaxListed) + " more";
  return text;
}

void append_set(FileSet& to, FileSet&& from) {
  if (to.single.empty()) to.single = std::move(from.single);
  std::ranges::move(from.indexes, std::back_inserter(to.indexes));
  std::ranges::move(from.ranks, std::back_inserter(to.ranks));
  for (auto& [total, files] : from.shards) {
    std::ranges::move(files, std::back_inserter(to.shards[total]));
  }
}

/// Turns the model "X.V" into variant V of X where X exists, is known to have variants, or has an
/// index of this variant, or the caller says so. Elsewhere the dot belongs to the name, as in
/// "Llama-3.1-8B".
void move_variants(Models& models, const ModelChoice& choice) {
  std::vector<std::string> names;
  for (const auto& [name, variants] : models) names.push_back(name);
  for (const std::string& name : names) {
    const auto dotted = parse_dotted(name);
    if (!dotted) continue;
    const auto plain = models.find(dotted->name);
    const bool is_said = plain != models.end() &&
                         (plain->second.contains("") || plain->second.contains(dotted->variant));
    const bool is_chosen = dotted->name == choice.name && dotted->variant == choice.variant;
    const bool is_variant =
        is_said || is_chosen ||
        std::ranges::find(kNamesWithVariants, dotted->name) != kNamesWithVariants.end();
    const auto whole = models.find(name);
    if (!is_variant || !whole->second.contains("")) continue;
    const auto node = whole->second.extract("");
    if (whole->second.empty()) models.erase(whole);
    append_set(models[std::string(dotted->name)][std::string(dotted->variant)],
               std::move(node.mapped()));
  }
}

/// Sorts the files by the models that their names tell. `names` are sorted.
Models models_of(const std::vector<std::string>& names, const ModelChoice& choice) {
  using Kind = ModelFileName::Kind;
  Models models;
  for (const std::string& file : names) {
    if (file.starts_with('.')) continue;
    const ModelFileName parsed = parse_model_file_name(file);
    if (parsed.kind == Kind::kOther) continue;
    FileSet& set = models[std::string(parsed.name)][std::string(parsed.variant)];
    if (parsed.kind == Kind::kSingle) set.single = file;
    if (parsed.kind == Kind::kIndex) set.indexes.push_back(file);
    if (parsed.kind == Kind::kShard) set.shards[parsed.total].push_back({parsed.number, file});
    if (parsed.kind == Kind::kRank) set.ranks.push_back(file);
    if (parsed.kind == Kind::kPart) set.parts.push_back({parsed.number, file});
  }
  move_variants(models, choice);
  return models;
}

/// Returns the name of the model, or an empty one if more than one may be it.
std::string usual_name(const Models& models) {
  std::vector<std::string_view> stated;
  std::vector<std::string_view> indexed;
  for (const auto& [name, variants] : models) {
    const auto any = [&](const auto& is) {
      return std::ranges::any_of(variants, [&](const auto& each) { return is(each.second); });
    };
    if (any([](const FileSet& set) { return set.is_stated(); })) stated.push_back(name);
    if (any([](const FileSet& set) { return !set.indexes.empty(); })) indexed.push_back(name);
  }
  for (const std::string_view usual : kUsualNames) {
    if (std::ranges::find(stated, usual) != stated.end()) return std::string(usual);
  }
  if (indexed.size() == 1) return std::string(indexed.front());
  for (const std::string_view usual : kUsualNames) {
    if (models.contains(usual)) return std::string(usual);
  }
  return models.size() == 1 ? models.begin()->first : std::string();
}

/// Fails for a folder without safetensors files. Says what reads the weights that it has instead.
[[noreturn]] void fail_empty(const std::vector<std::string>& names) {
  struct Other {
    std::array<std::string_view, 3> endings;
    std::string_view what;
    std::string_view readers;
  };
  // An index goes before its shards, which are no model each.
  constexpr Other kOthers[] = {
      {{".gguf", ".gguf", ".gguf"}, "GGUF", "`safetensors.weights` and `safetensors convert` read"},
      {{".bin.index.json", ".bin.index.json", ".bin.index.json"},
       "pickled weights",
       "`safetensors convert` reads"},
      {{".bin", ".pt", ".pth"}, "pickled weights", "`safetensors convert` reads"},
  };
  std::string text = "No .safetensors files in the directory";
  for (const Other& other : kOthers) {
    const auto has_ending = [&](const std::string& name) {
      return !name.starts_with('.') && std::ranges::any_of(other.endings, [&](auto ending) {
        return name.ends_with(ending);
      });
    };
    const auto found = std::ranges::find_if(names, has_ending);
    if (found == names.end()) continue;
    text += ", but " + std::string(other.what) + ": " + std::string(other.readers) + " `" +
            clipped(*found) + "`";
    break;
  }
  fail(ErrorCode::kNoModel, text);
}

const Models::value_type& choose_name(const Models& models, const std::string& wanted) {
  const auto found = models.find(wanted.empty() ? usual_name(models) : wanted);
  if (found != models.end()) return *found;
  std::vector<std::string> names;
  for (const auto& [name, variants] : models) {
    names.push_back(double_quoted(name) + " (" + clipped(variants.begin()->second.example()) + ")");
  }
  if (!wanted.empty()) {
    fail(ErrorCode::kNoModel, "no model " + double_quoted(wanted) + "; there are: " + listed(names),
         {.subject = wanted});
  }
  fail(ErrorCode::kSeveralModels, "several models: " + listed(names) +
                                      ": pass a file, an index, a list of files, or name=" +
                                      double_quoted(models.begin()->first));
}

const Variants::value_type& choose_variant(const Models::value_type& model,
                                           const std::string& wanted) {
  const Variants& variants = model.second;
  const auto found = variants.find(wanted);
  if (found != variants.end()) return *found;
  if (wanted.empty() && variants.size() == 1) return *variants.begin();
  std::vector<std::string> names;
  for (const auto& [variant, set] : variants) {
    names.push_back(variant.empty() ? "the plain files" : double_quoted(variant));
  }
  const std::string file = clipped(model.first) + std::string(detail::kModelFileSuffix);
  if (!wanted.empty()) {
    fail(ErrorCode::kNoModel,
         "no variant " + double_quoted(wanted) + " of " + file + "; there are: " + listed(names),
         {.subject = wanted});
  }
  fail(ErrorCode::kSeveralModels, "several variants of " + file + ": " + listed(names) +
                                      ": pass a file, an index, or variant=" + names.front());
}

/// Returns the files with the numbers `first` to `first + count - 1`, in order. Throws if the set
/// has others.
std::vector<std::string> complete(std::vector<NumberedFile> found, std::size_t first,
                                  std::size_t count) {
  std::ranges::sort(found);
  const std::string example = clipped(found.front().file);
  std::vector<std::string> files;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i > 0 && found[i].number == found[i - 1].number) {
      fail(ErrorCode::kSeveralModels, "two files have one number: " + clipped(found[i - 1].file) +
                                          " and " + clipped(found[i].file) +
                                          ": pass a list of files");
    }
    if (found[i].number < first || found[i].number - first >= count) {
      fail(ErrorCode::kIncompleteModel, clipped(found[i].file) + " has no number from 1 to " +
                                            grouped(count) +
                                            ", so its set is not complete: pass a list of files");
    }
    if (found[i].number != first + i) break;
    files.push_back(std::move(found[i].file));
  }
  if (files.size() != count) {
    fail(ErrorCode::kIncompleteModel,
         "file number " + grouped(first + files.size()) + " is absent of the " + grouped(count) +
             " in the set of " + example + ": pass a list of files to load a part");
  }
  return files;
}

/// Adds that files are not used, because of `why`. `files` are not empty.
void remark_unused(ModelFiles& model, const std::vector<std::string>& files, std::string_view why) {
  std::string text = clipped(files.front());
  if (files.size() > 1) text += " and " + grouped(files.size() - 1) + " more";
  model.remarks.push_back(text + (files.size() > 1 ? " are" : " is") +
                          " not used: " + std::string(why));
}

std::vector<std::string> numbered_files(const FileSet& set) {
  std::vector<std::string> files;
  for (const auto& [total, shards] : set.shards) {
    for (const NumberedFile& each : shards) files.push_back(each.file);
  }
  for (const NumberedFile& each : set.parts) files.push_back(each.file);
  return files;
}

void take_index(ModelFiles& model, const FileSet& set, std::vector<std::string> files) {
  model.form = ModelForm::kIndex;
  model.index = set.indexes.front();
  model.files = std::move(files);
  std::vector<std::string> named = model.files;
  std::ranges::sort(named);
  std::vector<std::string> unnamed = numbered_files(set);
  std::erase_if(unnamed,
                [&](const std::string& file) { return std::ranges::binary_search(named, file); });
  if (!unnamed.empty()) {
    remark_unused(model, unnamed,
                  clipped(model.index) + " does not name " + (unnamed.size() > 1 ? "them" : "it"));
  }
}

/// Takes the index of a set. Where a single file lies beside it, either may be the newer model:
/// libraries leave the other one behind when they save again. So one of them is taken only if the
/// other one is dead.
///
/// Returns false if the single file is to be taken.
bool take_index_if_alive(ModelFiles& model, const FileSet& set, const FolderQuestions& questions) {
  const std::string& index = set.indexes.front();
  std::vector<std::string> files = questions.files_of_index(index);
  if (set.single.empty() || files == std::vector{set.single}) {
    take_index(model, set, std::move(files));
    return true;
  }
  const auto alive = std::ranges::find_if(
      files, [&](const std::string& file) { return file != set.single && questions.exists(file); });
  if (alive == files.end()) {
    model.remarks.push_back(clipped(index) + " is not used: no other file that it names exists");
    return false;
  }
  if (!questions.exists(set.single)) {  // a link to nothing
    take_index(model, set, std::move(files));
    return true;
  }
  fail(ErrorCode::kSeveralModels, clipped(set.single) + " and the files of " + clipped(index) +
                                      " (" + clipped(*alive) +
                                      ") may be two models: pass the path of one of them");
}

/// Takes one form of a set.
void take_form(ModelFiles& model, const FileSet& set, const FolderQuestions& questions) {
  if (set.indexes.size() > 1) {
    std::vector<std::string> names;
    names.reserve(set.indexes.size());
    for (const std::string& each : set.indexes) names.push_back(clipped(each));
    fail(ErrorCode::kSeveralModels,
         "several indexes of one model: " + listed(names) + ": pass the path of one of them");
  }
  if (!set.indexes.empty() && take_index_if_alive(model, set, questions)) return;
  const std::vector<std::string> numbered = numbered_files(set);
  if (!set.single.empty()) {
    if (!numbered.empty()) {
      remark_unused(model, numbered,
                    "no index names " + std::string(numbered.size() > 1 ? "them" : "it") +
                        ", and there is " + clipped(set.single));
    }
    model.files = {set.single};
    return;
  }
  const bool has_numbered = !numbered.empty();
  if (!set.ranks.empty() && !has_numbered) {
    model.form = ModelForm::kRanks;
    model.files = set.ranks;
    return;
  }
  if (set.shards.size() + (set.ranks.empty() ? 0 : 1) + (set.parts.empty() ? 0 : 1) > 1) {
    std::vector<std::string> examples;
    examples.reserve(set.shards.size() + 2);
    for (const auto& [total, shards] : set.shards) examples.push_back(clipped(shards[0].file));
    if (!set.ranks.empty()) examples.push_back(clipped(set.ranks.front()));
    if (!set.parts.empty()) examples.push_back(clipped(set.parts.front().file));
    fail(ErrorCode::kSeveralModels,
         "several sets of files: those of " + listed(examples) + ": pass a list of files");
  }
  if (!set.parts.empty()) {
    model.form = ModelForm::kParts;
    const std::size_t last = std::ranges::max(set.parts).number;
    model.files = complete(set.parts, 0, last + 1);
    return;
  }
  model.form = ModelForm::kShards;
  model.files = complete(set.shards.begin()->second, 1, set.shards.begin()->first);
}

}  // namespace

ModelFiles choose_model_files(std::vector<std::string> names, const ModelChoice& choice,
                              const FolderQuestions& questions) {
  std::ranges::sort(names);  // so that no answer and no text depends on the order of a listing
  names.erase(std::unique(names.begin(), names.end()), names.end());
  const Models models = models_of(names, choice);
  if (models.empty()) fail_empty(names);
  const Models::value_type& of_name = choose_name(models, choice.name);
  const Variants::value_type& chosen = choose_variant(of_name, choice.variant);
  ModelFiles model{.name = of_name.first, .variant = chosen.first};
  take_form(model, chosen.second, questions);

  std::vector<std::string> used = model.files;
  std::ranges::sort(used);
  for (std::string& name : names) {
    if (!name.starts_with('.') && name.ends_with(detail::kModelFileSuffix) &&
        name.size() > detail::kModelFileSuffix.size() && !std::ranges::binary_search(used, name)) {
      model.others.push_back(std::move(name));
    }
  }
  return model;
}

std::vector<std::string> model_probes(const ModelChoice& choice) {
  std::vector<std::string> stems(kUsualNames.begin(), kUsualNames.end());
  if (!choice.name.empty()) stems = {choice.name};
  const std::string variant = choice.variant.empty() ? std::string() : "." + choice.variant;
  const std::string suffix(detail::kModelFileSuffix);
  const std::string index = suffix + ".index" + variant + ".json";
  const std::string single = variant + suffix;
  std::vector<std::string> probes;
  for (const std::string& stem : stems) {
    probes.push_back(stem + index);
    probes.push_back(stem + single);
  }
  return probes;
}

}  // namespace safetensors
