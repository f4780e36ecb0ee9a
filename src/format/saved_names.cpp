#include "safetensors/detail/saved_names.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "base/ascii_text.hpp"
#include "base/display_path.hpp"
#include "format/model_names.hpp"
#include "safetensors/error.hpp"
#include "safetensors/model_files.hpp"
#include "safetensors/shard_plan.hpp"
#include "safetensors/sums.hpp"

namespace safetensors::detail {
namespace {

constexpr std::array<std::string_view, 9> kCompanionEnds = {
    ".json", ".jinja", ".model", ".txt", ".tiktoken", ".py", ".spm", ".codes", ".tokenizer"};
/// Mistral's tokenizers have names such as tokenizer.model.v3.
constexpr std::array<std::string_view, 5> kCompanionStarts = {"LICENSE", "LICENCE", "NOTICE",
                                                              "USE_POLICY", "tokenizer.model."};
constexpr std::array<std::string_view, 5> kOfQuantised = {
    "quantize_config.json", "quant_config.json", "hf_quant_config.json", "quantization_map.json",
    "quant_model_description.json"};

/// Returns whether a name is one in a folder, and not hidden.
bool is_plain_name(std::string_view name) {
  constexpr std::string_view kSeparators("/\\\0", 3);
  return !name.empty() && name.front() != '.' &&
         name.find_first_of(kSeparators) == std::string_view::npos;
}

void drop_end(std::string_view& text, std::string_view end) {
  if (text.ends_with(end)) text.remove_suffix(end.size());
}

}  // namespace

void check_model_name(std::string_view name, std::size_t most) {
  if (!is_plain_name(name)) {
    fail(ErrorCode::kInvalidArgument,
         "not a name for a model's files: " + repr_of(name) +
             " (it may not be empty, begin with a dot, or contain a slash, a backslash or NUL)");
  }
  if (name.size() > most) {
    fail(ErrorCode::kInvalidArgument,
         "a model's name has at most " + std::to_string(most) + " bytes: " + repr_of(name));
  }
}

void check_new_folder(const std::filesystem::path& folder) {
  const std::string text = display_path(folder);
  if (!text.ends_with(kModelFileSuffix)) return;
  fail(ErrorCode::kInvalidArgument,
       text +
           " would be a folder with the name of a file: save_file writes one file, and a model "
           "of several files needs a folder",
       {.path = folder});
}

bool is_shard_of(std::string_view name, std::string_view file) {
  using Kind = ModelFileName::Kind;
  const ModelFileName parsed = parse_model_file_name(file);
  if (parsed.kind != Kind::kShard && parsed.kind != Kind::kRank) return false;
  // A total of 1 would give the name of the only file.
  return parsed.total <= kMaxShards && file.starts_with(name) &&
         file.substr(name.size()) == numbered_end(parsed.number, parsed.total);
}

bool is_file_of(std::string_view name, std::string_view file) {
  return file == shard_file_name(name, 1, 1) || file == index_file_name(name) ||
         is_shard_of(name, file);
}

std::string_view model_of(std::string_view file) {
  drop_end(file, kIndexSuffix);
  drop_end(file, kModelFileSuffix);
  const std::optional<NumberedName> numbered = parse_numbered(file);
  if (!numbered || numbered->number > kMaxShards || numbered->total > kMaxShards) return file;
  const std::string end = numbered_end(numbered->number, numbered->total);
  const std::string_view digits =
      std::string_view(end).substr(0, end.size() - kModelFileSuffix.size());
  return file.ends_with(digits) ? numbered->stem : file;
}

std::string name_to_save(std::string_view file) {
  const ModelFileName parsed = parse_model_file_name(file);
  if (parsed.kind != ModelFileName::Kind::kIndex && parsed.kind != ModelFileName::Kind::kShard) {
    return "model";
  }
  std::string name(parsed.name);
  if (!parsed.variant.empty()) name.append(1, '.').append(parsed.variant);
  return name;
}

std::string_view file_of_other_model(std::span<const std::string> names,
                                     std::span<const std::string> ours) {
  const std::set<std::string_view> taken(ours.begin(), ours.end());
  std::string_view first;
  for (const std::string& file : names) {
    const bool is_of_model =
        !file.starts_with('.') && parse_model_file_name(file).kind != ModelFileName::Kind::kOther;
    if (is_of_model && !taken.contains(file) && (first.empty() || file < first)) first = file;
  }
  return first;
}

bool is_companion(std::string_view file) {
  const auto ends = [&](std::string_view end) { return file.ends_with(end); };
  const auto starts = [&](std::string_view start) { return file.starts_with(start); };
  // Of a model in any format, also of a variant: model.safetensors.index.fp16.json.
  const bool is_index = ends(".json") && file.find(".index.") != std::string_view::npos;
  if (!is_plain_name(file) || is_index || ends(kSumsSuffix)) return false;
  return std::ranges::any_of(kCompanionEnds, ends) || std::ranges::any_of(kCompanionStarts, starts);
}

bool describes_quantised(std::string_view file) {
  return std::ranges::find(kOfQuantised, file) != kOfQuantised.end();
}

}  // namespace safetensors::detail
