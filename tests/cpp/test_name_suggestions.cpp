#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/name_suggestions.hpp"

using safetensors::name_suggestions;

namespace {

std::string suggested(std::string_view name, const std::vector<std::string>& names) {
  return name_suggestions(name, names);
}

}  // namespace

TEST_CASE("similar names are suggested, the most similar first") {
  CHECK(suggested("wieght", {"weight", "bias"}) == "; did you mean `weight`?");
  CHECK(suggested("abcdef", {"abcdxx", "abcdex"}) == "; did you mean `abcdex` or `abcdxx`?");
  CHECK(suggested("abcd", {"abcx", "abxd", "axcd", "xbcd"}) ==
        "; did you mean `abcx`, `abxd` or `axcd`?");
  CHECK(suggested("ab", {"a"}) == "; did you mean `a`?");
}

TEST_CASE("names that lack their first or last parts are similar") {
  CHECK(suggested("h.0.bias", {"transformer.h.0.bias"}) ==
        "; did you mean `transformer.h.0.bias`?");
  CHECK(suggested("transformer.h.0.bias", {"h.0.bias"}) == "; did you mean `h.0.bias`?");
  CHECK(suggested("layers.0.q_proj", {"layers.0.q_proj.weight"}) ==
        "; did you mean `layers.0.q_proj.weight`?");
  CHECK(suggested("bias[2]", {"a", "bias"}) == "; did you mean `bias`?");
  CHECK(suggested("bias", {"transformer_h_0_bias"}).empty());
}

TEST_CASE("of names that differ in numbers, the most similar is suggested") {
  CHECK(suggested("layers.12.wieght", {"layers.10.weight", "layers.12.weight", "norm.weight"}) ==
        "; did you mean `layers.12.weight`?");
}

TEST_CASE("nothing is suggested that has nothing in common") {
  CHECK(suggested("b", {"a", "", "weight"}).empty());
  CHECK(suggested("", {"a", ""}).empty());
  CHECK(suggested("weight", {}).empty());
  CHECK(suggested(std::string(201, 'a'), {std::string(201, 'a') + "b"}).empty());
}

TEST_CASE("control characters of names are escaped") {
  CHECK(suggested("abc", {"ab\n"}) == "; did you mean `ab\\u000a`?");
}

TEST_CASE("the cost is limited, whatever the names" * doctest::test_suite("timed")) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < 20'000; ++i) {
    names.push_back("b" + std::string(190, i % 2 == 0 ? 'a' : 'c') + "d");
  }
  const auto begin = std::chrono::steady_clock::now();
  (void)suggested(std::string(192, 'a'), names);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
}
