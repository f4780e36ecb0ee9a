#include "schemes/module_rules.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/parse_integer.hpp"
#include "base/text.hpp"
#include "names/names.hpp"
#include "schemes/name_pattern.hpp"
#include "schemes/parts.hpp"

namespace safetensors::weights {
namespace {

using Form = ModuleRule::Form;

constexpr std::string_view kKept[] = {"ignore", "modules_to_not_convert", "exclude_modules",
                                      "ignored_layers", "llm_int8_skip_modules"};
constexpr std::string_view kPatternMark = "re:";
/// Many models have no tensor of it, because it is tied to the embeddings.
constexpr std::string_view kHead = "lm_head";
constexpr std::size_t kMaxPatternBytes = 1024;
constexpr std::uint64_t kMaxPatternSteps = 200'000'000;
constexpr std::size_t kMaxNamed = 3;

bool is_upper(char c) noexcept { return c >= 'A' && c <= 'Z'; }
bool is_of_name(char c) noexcept {
  return c == '.' || c == '_' || c == '-' || (c >= '0' && c <= '9') || is_upper(c) ||
         (c >= 'a' && c <= 'z');
}
bool is_name(std::string_view text) noexcept {
  return !text.empty() && std::ranges::all_of(text, is_of_name);
}

/// A component of a name that is a number.
struct Number {
  std::size_t begin;
  std::size_t end;
};

std::optional<Number> find_number(std::string_view name, std::size_t from) noexcept {
  while (from < name.size()) {
    const std::size_t end = std::min(name.find('.', from), name.size());
    const auto digits = name.substr(from, end - from);
    if (!digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos) {
      return Number{from, end};
    }
    from = end + 1;
  }
  return std::nullopt;
}

/// Returns what a name has from the component before its first number on, "layers.0.mlp", and up
/// to the second number if `is_entry`; without a number, the name without the model's prefix.
std::string_view comparable(std::string_view name, bool is_entry) noexcept {
  const auto layer = find_number(name, 0);
  if (!layer) return inner_name(name);
  if (is_entry) {
    if (const auto expert = find_number(name, layer->end + 1)) {
      name = name.substr(0, expert->begin - 1);
    }
  }
  if (layer->begin < 2) return name;
  const std::size_t dot = name.rfind('.', layer->begin - 2);
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

/// Returns whether a layer is one that checkpoints may lack.
bool may_be_absent(std::string_view name, std::optional<std::int64_t> absent_from) noexcept {
  const auto layer = find_number(name, 0);
  if (!layer || !absent_from) return false;
  const auto number =
      parse_integer<std::int64_t>(name.substr(layer->begin, layer->end - layer->begin));
  return !number || *number >= *absent_from;
}

/// What the names of a model's tensors are compared with.
class Names {
 public:
  explicit Names(std::span<const std::string_view> tensors) : tensors_(tensors) {
    for (const std::string_view tensor : tensors) sorted_.push_back(comparable(tensor, false));
    std::ranges::sort(sorted_);
  }

  [[nodiscard]] bool have(const ModuleRule& rule) {
    if (rule.form == Form::pattern) return have_match(rule.text);
    const std::string_view wanted = comparable(rule.text, rule.form == Form::name);
    auto found = std::ranges::lower_bound(sorted_, wanted);
    if (rule.form == Form::beginning) return found != sorted_.end() && found->starts_with(wanted);
    // Of the names that begin so, "mlp-x" is before "mlp.x".
    for (const std::string_view end : {"", "."}) {
      const std::string name = std::string(wanted) + std::string(end);
      found = std::lower_bound(found, sorted_.end(), name);
      if (found == sorted_.end()) return false;
      if (end.empty() ? *found == name : found->starts_with(name)) return true;
    }
    return false;
  }

 private:
  [[nodiscard]] bool have_match(const std::string& text) {
    const auto pattern = NamePattern::parse(text);
    if (!pattern) return true;
    std::string plain;
    const auto matches = [&](std::string_view name) {
      steps_ += (text.size() + 1) * (3 * name.size() + 1);
      if (steps_ > kMaxPatternSteps) return true;
      const std::string_view inner = inner_name(name);
      plain = "model." + std::string(inner);
      return pattern->matches(name) || pattern->matches(inner) || pattern->matches(plain);
    };
    std::string_view before;
    return std::ranges::any_of(tensors_, [&](std::string_view tensor) {
      const std::string_view module = module_with_parts(tensor);
      const bool is_new = std::exchange(before, module) != module;
      return (is_new && matches(module)) || matches(tensor);
    });
  }

  std::span<const std::string_view> tensors_;
  std::vector<std::string_view> sorted_;
  std::uint64_t steps_ = 0;
};

/// Collects rules.
class Reader {
 public:
  void kept(std::string_view list, const std::string& entry) {
    const bool is_beginning = entry.ends_with('*');
    const std::string text = entry.substr(0, entry.size() - (is_beginning ? 1 : 0));
    if (!is_name(text) || !find_number(text, 0)) return;
    add(list, entry, text, is_beginning ? Form::beginning : Form::name);
  }
  void quantised(std::string_view list, const std::string& entry, std::string text,
                 bool is_pattern) {
    if (entry.ends_with(kHead) || text.size() > kMaxPatternBytes) return;
    if (is_pattern || is_name(text)) {
      add(list, entry, std::move(text), is_pattern ? Form::pattern : Form::name);
    }
  }
  void next_group() noexcept { ++group_; }
  [[nodiscard]] std::vector<ModuleRule> take() { return std::move(rules_); }

 private:
  void add(std::string_view list, std::string entry, std::string text, Form form) {
    rules_.push_back({list, std::move(entry), std::move(text), form, group_});
  }

  std::vector<ModuleRule> rules_;
  std::size_t group_ = 0;
};

std::span<const Json> array_of(const Json* json) noexcept {
  const Json::Array* array = json == nullptr ? nullptr : json->as_array();
  return array == nullptr ? std::span<const Json>() : std::span<const Json>(*array);
}

std::span<const Json::Member> members_of(const Json* json) noexcept {
  const Json::Object* object = json == nullptr ? nullptr : json->as_object();
  return object == nullptr ? std::span<const Json::Member>() : std::span(*object);
}

void read_targets(const Json& group, Reader& reader) {
  const std::span<const Json> targets = array_of(group.find("targets"));
  // A class has any modules.
  const bool has_class = std::ranges::any_of(targets, [](const Json& target) {
    const std::string* text = target.as_string();
    return text != nullptr && !text->empty() && is_upper(text->front()) &&
           text->find('.') == std::string::npos;
  });
  reader.next_group();
  for (const Json& target : targets) {
    const std::string* text = target.as_string();
    if (text == nullptr) continue;
    const bool is_pattern = text->starts_with(kPatternMark);
    if (is_pattern ? has_class : is_upper(text->front())) continue;
    reader.quantised("config_groups", *text, is_pattern ? text->substr(3) : *text, is_pattern);
  }
}

}  // namespace

std::vector<ModuleRule> read_module_rules(const Json& quantisation) {
  Reader reader;
  for (const std::string_view list : kKept) {
    for (const Json& each : array_of(quantisation.find(list))) {
      if (each.as_string() != nullptr) reader.kept(list, *each.as_string());
    }
  }
  for (const auto& [name, group] : members_of(quantisation.find("config_groups"))) {
    read_targets(group, reader);
  }
  for (const auto& [name, settings] : members_of(quantisation.find("quantized_layers"))) {
    reader.next_group();
    reader.quantised("quantized_layers", name, name, false);
  }
  // GPTQModel: regular expressions.
  for (const auto& [entry, settings] : members_of(quantisation.find("dynamic"))) {
    reader.next_group();
    if (entry.starts_with("-:")) continue;
    reader.quantised("dynamic", entry, entry.substr(entry.starts_with("+:") ? 2 : 0), true);
  }
  // auto-round: names, or regular expressions.
  for (const auto& [entry, settings] : members_of(quantisation.find("extra_config"))) {
    const Json* bits = settings.find("bits");
    reader.next_group();
    if (bits != nullptr && bits->as_integer().value_or(0) >= 16) {
      reader.kept("extra_config", entry);
    } else {
      reader.quantised("extra_config", entry, entry, !is_name(entry));
    }
  }
  return reader.take();
}

void say_unmatched(std::span<const ModuleRule> rules, std::span<const std::string_view> tensors,
                   std::optional<std::int64_t> absent_from, std::vector<std::string>& warnings) {
  if (rules.empty()) return;
  Names names(tensors);
  std::set<std::size_t> matched;  // groups of patterns
  std::vector<const ModuleRule*> left;
  for (const ModuleRule& rule : rules) {
    const bool is_pattern = rule.form == Form::pattern;
    if (is_pattern && matched.contains(rule.group)) continue;
    if (!may_be_absent(rule.text, absent_from) && !names.have(rule)) {
      left.push_back(&rule);
    } else if (is_pattern) {
      matched.insert(rule.group);
    }
  }
  std::erase_if(left, [&](const ModuleRule* rule) {
    return rule->form == Form::pattern && matched.contains(rule->group);
  });
  for (auto begin = left.begin(); begin != left.end();) {
    const auto end = std::find_if(
        begin, left.end(), [&](const ModuleRule* rule) { return rule->list != (*begin)->list; });
    std::vector<std::string_view> entries;
    std::ranges::transform(begin, end, std::back_inserter(entries),
                           [](const ModuleRule* rule) { return std::string_view(rule->entry); });
    say_unmatched((*begin)->list, entries, warnings);
    begin = end;
  }
}

void say_unmatched(std::string_view list, std::span<const std::string_view> entries,
                   std::vector<std::string>& warnings) {
  if (entries.empty()) return;
  const std::size_t count = entries.size();
  std::string text =
      "`" + std::string(list) + "` has " + grouped(count) +
      (count == 1 ? " entry that matches no module: " : " entries that match no module: ");
  for (std::size_t i = 0; i < std::min(count, kMaxNamed); ++i) {
    text += (i == 0 ? "`" : ", `") + clipped(entries[i]) + "`";
  }
  if (count > kMaxNamed) text += ", ...";
  warnings.push_back(std::move(text));
}

}  // namespace safetensors::weights
