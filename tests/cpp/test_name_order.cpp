// Sorting by name gives the same order as comparing whole names, for any prefixes.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "format/name_order.hpp"

using safetensors::TensorInfo;
using safetensors::format::sort_by_name;

namespace {

void check(const std::vector<std::string>& names) {
  std::vector<TensorInfo> infos;
  for (const std::string& name : names) infos.push_back({.name = name, .shape = {}});
  std::vector<const TensorInfo*> tensors;
  for (const TensorInfo& info : infos) tensors.push_back(&info);
  sort_by_name(tensors);
  std::vector<std::string_view> sorted;
  for (const TensorInfo* const info : tensors) sorted.push_back(info->name);
  std::vector<std::string_view> expected(names.begin(), names.end());
  std::sort(expected.begin(), expected.end());
  CHECK((sorted == expected));
}

}  // namespace

TEST_CASE("few names, no names, and sorted names") {
  check({});
  check({"a"});
  check({"b", "a"});
  check({"", "b", "ab", "a"});
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("layer." + std::to_string(100 + i));
  check(names);
  std::reverse(names.begin(), names.end());
  check(names);
}

TEST_CASE("names that are prefixes of others, and NUL within names") {
  std::vector<std::string> names;
  for (const std::string& begin : {std::string(), std::string("p"), std::string("model.layers.")}) {
    for (std::size_t zeros = 0; zeros < 20; ++zeros) {
      names.push_back(begin + std::string(zeros, '\0'));
      names.push_back(begin + std::string(zeros, '\0') + "x");
      names.push_back(begin + std::string(zeros, '\xC3') + "\xA9");
    }
  }
  std::shuffle(names.begin(), names.end(), std::mt19937(1));
  check(names);
}

TEST_CASE("names that share ever longer prefixes") {
  std::vector<std::string> names;
  for (std::size_t length = 0; length < 600; ++length)
    names.push_back(std::string(length, 'a') + 'b');
  std::shuffle(names.begin(), names.end(), std::mt19937(2));
  check(names);
}

TEST_CASE("random names of few letters") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> names(random() % (round % 10 == 0 ? 5000 : 300));
    const std::string begin(random() % 20, 'a');
    for (std::string& name : names) {
      name = begin;
      for (auto left = random() % 24; left > 0; --left) name += "a\0b\xFF"[random() % 4];
    }
    if (round % 2 == 0) {  // else some are equal, as those of two files may be
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
    }
    std::shuffle(names.begin(), names.end(), random);
    check(names);
  }
}

TEST_CASE("equal names") {
  for (const std::size_t length : {0, 1, 6, 7, 8, 14, 15, 100}) {
    std::vector<std::string> names(30, std::string(length, 'a'));
    check(names);
    for (std::size_t i = 0; i < 30; ++i) names.push_back("b" + std::to_string(i / 2));
    std::shuffle(names.begin(), names.end(), std::mt19937(4));
    check(names);
  }
}

TEST_CASE("numbered names, as files have them") {
  std::vector<std::string> names;
  for (int layer = 0; layer < 40; ++layer) {
    for (int expert = 0; expert < 120; ++expert) {
      for (const char* const part : {"gate", "up", "down"}) {
        names.push_back("model.layers." + std::to_string(layer) + ".mlp.experts." +
                        std::to_string(expert) + "." + part + "_proj.weight");
      }
    }
  }
  check(names);
  names.emplace_back("lm_head.weight");
  check(names);
}
