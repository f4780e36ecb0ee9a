#include "format/model_names.hpp"

#include <algorithm>

#include "base/parse_integer.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/model_files.hpp"

namespace safetensors {
namespace {

constexpr std::string_view kJsonSuffix = ".json";
constexpr std::string_view kIndexWord = "index";
constexpr std::string_view kRankStart = "shard-";
constexpr std::string_view kPartsName = "weights";

std::optional<std::size_t> parse_digits(std::string_view text) {
  return text.size() > kMaxNumberDigits ? std::nullopt : parse_integer<std::size_t>(text);
}

bool is_variant(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    const char lower = static_cast<char>(c | 0x20);
    return (c >= '0' && c <= '9') || (lower >= 'a' && lower <= 'z') || c == '_';
  });
}

/// Returns the text without `end`, if it ends so and something is left.
std::optional<std::string_view> without_end(std::string_view text, std::string_view end) {
  if (text.size() <= end.size() || !text.ends_with(end)) return std::nullopt;
  return text.substr(0, text.size() - end.size());
}

/// `stem` is the name of a file without ".json".
ModelFileName parse_index_name(std::string_view stem) {
  const auto last = parse_dotted(stem);
  if (!last) return {};
  if (last->variant == kIndexWord) {
    if (const auto name = without_end(last->name, detail::kModelFileSuffix))
      return {ModelFileName::Kind::kIndex, *name};
  }
  const auto first = parse_dotted(last->name);
  if (!first) return {};
  const auto name = without_end(first->name, detail::kModelFileSuffix);
  if (!name) return {};
  if (first->variant == kIndexWord) return {ModelFileName::Kind::kIndex, *name, last->variant};
  if (last->variant == kIndexWord) return {ModelFileName::Kind::kIndex, *name, first->variant};
  return {};
}

/// Returns NAME of "shard-R-NAME".
std::optional<std::string_view> name_of_rank(std::string_view stem) {
  if (!stem.starts_with(kRankStart)) return std::nullopt;
  stem.remove_prefix(kRankStart.size());
  const std::size_t dash = stem.find('-');
  if (dash == std::string_view::npos || dash + 1 == stem.size()) return std::nullopt;
  return parse_digits(stem.substr(0, dash)) ? std::optional(stem.substr(dash + 1)) : std::nullopt;
}

}  // namespace

std::optional<NumberedName> parse_numbered(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t of = name.rfind(kOf);
  if (of == std::string_view::npos || of == 0) return std::nullopt;
  const std::size_t dash = name.rfind('-', of - 1);
  if (dash == std::string_view::npos || dash == 0) return std::nullopt;
  const auto number = parse_digits(name.substr(dash + 1, of - dash - 1));
  const auto total = parse_digits(name.substr(of + kOf.size()));
  if (!number || !total) return std::nullopt;
  return NumberedName{name.substr(0, dash), *number, *total};
}

std::optional<DottedName> parse_dotted(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0 || !is_variant(name.substr(dot + 1))) {
    return std::nullopt;
  }
  return DottedName{name.substr(0, dot), name.substr(dot + 1)};
}

std::string five_digits(std::size_t number) {
  std::string text = std::to_string(number);
  if (text.size() < 5) text.insert(0, 5 - text.size(), '0');
  return text;
}

std::string numbered_end(std::size_t number, std::size_t total) {
  return "-" + five_digits(number) + "-of-" + five_digits(total) +
         std::string(detail::kModelFileSuffix);
}

ModelFileName parse_model_file_name(std::string_view file) {
  using Kind = ModelFileName::Kind;
  if (const auto stem = without_end(file, kJsonSuffix)) return parse_index_name(*stem);
  const auto stem = without_end(file, detail::kModelFileSuffix);
  if (!stem) return {};
  const auto dotted = parse_dotted(*stem);
  if (dotted && dotted->name == kPartsName) {
    if (const auto number = parse_digits(dotted->variant)) {
      return {Kind::kPart, kPartsName, {}, *number};
    }
  }
  std::string_view variant;
  auto numbered = parse_numbered(*stem);
  if (!numbered && dotted) {
    numbered = parse_numbered(dotted->name);
    variant = dotted->variant;
  }
  if (!numbered) return {Kind::kSingle, *stem};
  if (const auto name = name_of_rank(numbered->stem)) {
    return {Kind::kRank, *name, variant, numbered->number, numbered->total};
  }
  return {Kind::kShard, numbered->stem, variant, numbered->number, numbered->total};
}

}  // namespace safetensors
