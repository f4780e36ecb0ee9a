#include "schemes/name_pattern.hpp"

#include <algorithm>
#include <utility>

namespace safetensors::weights {
namespace {

constexpr int kMaxDepth = 8;
/// Characters that have a meaning of their own; those without one here are refused.
constexpr std::string_view kSpecial = ".^$*+?{}[]\\|()";

bool is_decimal_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_letter(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

class NamePattern::Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  [[nodiscard]] bool read(std::vector<Sequence>& to) { return choices(to, 0) && rest_.empty(); }

 private:
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  bool choices(std::vector<Sequence>& to, int depth) {
    do {
      Sequence& sequence = to.emplace_back();
      while (!rest_.empty() && rest_.front() != '|' && rest_.front() != ')') {
        if (!read_item(sequence.emplace_back(), depth)) return false;
      }
    } while (take("|"));
    return true;
  }

  bool read_item(Item& item, int depth) {
    if (take("(")) {
      item.kind = Kind::group;
      return depth < kMaxDepth && choices(item.choices, depth + 1) && take(")");
    }
    if (take("^") || take("$")) {
      item.kind = rest_.data()[-1] == '^' ? Kind::begin : Kind::end;
      return true;
    }
    if (take("\\d") || take("[0-9]")) {
      item.kind = Kind::digit;
    } else if (take(".")) {
      item.kind = Kind::any;
    } else {
      const bool is_escaped = take("\\");
      if (rest_.empty()) return false;
      item.character = rest_.front();
      rest_.remove_prefix(1);
      const bool is_plain = is_escaped
                                ? !is_decimal_digit(item.character) && !is_letter(item.character)
                                : kSpecial.find(item.character) == kSpecial.npos;
      if (!is_plain) return false;
    }
    item.is_optional = take("*");
    item.is_repeated = item.is_optional || take("+");
    // "a*?" and "a++" are other constructs.
    return !item.is_repeated || rest_.empty() ||
           (rest_.front() != '?' && rest_.front() != '+' && rest_.front() != '*');
  }

  std::string_view rest_;
};

std::optional<NamePattern> NamePattern::parse(std::string_view text) {
  NamePattern pattern;
  if (!Parser(text).read(pattern.choices_)) return std::nullopt;
  return pattern;
}

bool NamePattern::accepts(const Item& item, char c) noexcept {
  switch (item.kind) {
    case Kind::any:
      return c != '\n';
    case Kind::digit:
      return is_decimal_digit(c);
    default:
      return c == item.character;
  }
}

void NamePattern::follow(const Item& item, std::string_view name, Places& places) {
  const std::size_t size = name.size();
  switch (item.kind) {
    case Kind::begin:
      std::fill(places.begin() + 1, places.end(), std::uint8_t{0});
      return;
    case Kind::end:
      std::fill(places.begin(), places.end() - 1, std::uint8_t{0});
      return;
    case Kind::group:
      follow(item.choices, name, places);
      return;
    default:
      break;
  }
  if (!item.is_optional) {
    for (std::size_t i = size; i-- > 0;) {
      places[i + 1] = static_cast<std::uint8_t>(places[i] & (accepts(item, name[i]) ? 1 : 0));
    }
    places[0] = 0;
  }
  if (!item.is_repeated) return;
  for (std::size_t i = 0; i < size; ++i) {
    if (places[i] != 0 && accepts(item, name[i])) places[i + 1] = 1;
  }
}

void NamePattern::follow(const std::vector<Sequence>& choices, std::string_view name,
                         Places& places) {
  Places reached(places.size(), 0);
  for (const Sequence& sequence : choices) {
    Places own = places;
    for (const Item& item : sequence) {
      follow(item, name, own);
      if (std::ranges::find(own, 1) == own.end()) break;
    }
    for (std::size_t i = 0; i < own.size(); ++i) reached[i] |= own[i];
  }
  places = std::move(reached);
}

bool NamePattern::matches(std::string_view name) const {
  Places places(name.size() + 1, 0);
  places[0] = 1;
  follow(choices_, name, places);
  return std::ranges::find(places, 1) != places.end();
}

}  // namespace safetensors::weights
