// Patterns for names of modules. The expected results are those of Python's re.match().
#include <doctest/doctest.h>

#include <string>

#include "schemes/name_pattern.hpp"

namespace {

using safetensors::weights::NamePattern;

bool matches(std::string_view pattern, std::string_view name) {
  const auto parsed = NamePattern::parse(pattern);
  CAPTURE(std::string(pattern));
  REQUIRE(parsed.has_value());
  return parsed && parsed->matches(name);
}

}  // namespace

TEST_CASE("name patterns: every construct") {
  const std::string_view name = "model.layers.12.mlp.experts.7.gate_proj";
  struct Example {
    std::string_view pattern;
    bool matches;
  };
  constexpr Example kExamples[] = {
      {"", true},
      {"model", true},  // the rest of the name is not looked at
      {"layers", false},
      {".*layers", true},
      {"^model", true},
      {".*^model", true},
      {".*^layers", false},
      {".*gate_proj$", true},
      {".*gate_pro$", false},
      {".*mlp.experts", true},
      {"model.layers.1.mlp", false},
      {"model.layers.12.mlp", true},
      {R"(model\.layers\.\d+\.mlp)", true},
      {R"(model\.layers\.\d\.mlp)", false},
      {R"(model\.layers\.[0-9]+\.mlp)", true},
      {R"(model\.layers\.\d*\d\.mlp)", true},
      {R"(.*experts\.\d+\.(up|gate|down)_proj$)", true},
      {R"(.*experts\.\d+\.(up|down)_proj$)", false},
      {"(a|b|model).layers", true},
      {"a|model", true},
      {"a|b", false},
      {"(model|(x|y(z|w)))", true},
      {".*(|x)proj", true},
      {"mo*del", true},
      {"mx*odel", true},
      {"mx+odel", false},
      {"mo+del", true},
      {".+j$", true},
      {".+.+.+jj$", false},
      {"$", false},
      {".*$", true},
      {"model.*\\_proj", true},
      {"\\^", false},
  };
  for (const Example& example : kExamples) {
    CHECK(matches(example.pattern, name) == example.matches);
  }
  CHECK(matches("$", ""));
  CHECK(matches("a*", ""));
  CHECK_FALSE(matches("a+", ""));
  CHECK(matches("(a|ab)(c|bcd)$", "abcd"));  // not the first choice
  CHECK(matches("(a|ab)(c|bcd)$", "abc"));
}

TEST_CASE("name patterns: other constructs are not accepted") {
  for (const std::string_view pattern :
       {"(a",    "a)",    "a?",    "a*?",  "a++",  "a**", "(a)+",
        "(?:a)", "(?!a)", "[a-z]", "[0-9", "a{2}", "\\w", "\\b",
        "\\1",   "\\",    "*",     "+a",   "]",    "}",   "(model|(x|y(z|w)))+",
        "(*)"}) {
    CAPTURE(std::string(pattern));
    CHECK_FALSE(NamePattern::parse(pattern));
  }
  const std::string deep = std::string(8, '(') + 'a' + std::string(8, ')');
  CHECK(matches(deep, "a"));
  CHECK_FALSE(NamePattern::parse('(' + deep + ')'));
  CHECK_FALSE(NamePattern::parse(std::string(1'000'000, '(')));
}

TEST_CASE("name patterns: a hard pattern takes linear time") {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += ".*a";
  CHECK_FALSE(matches(pattern + "b$", std::string(2'000, 'a')));
  CHECK(matches(pattern, std::string(2'000, 'a')));
}
