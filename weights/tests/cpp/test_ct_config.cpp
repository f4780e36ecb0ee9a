// config_groups: what matching hostile patterns may cost.
// weights/tests/python/test_weights_compressed_tensors has the groups themselves.
#include <doctest/doctest.h>

#include <string>

#include "common/json.hpp"
#include "safetensors/weights/error.hpp"
#include "schemes/ct_config.hpp"

namespace {

using safetensors::weights::CtGroups;
using safetensors::weights::Duplicates;
using safetensors::weights::Errc;
using safetensors::weights::WeightsError;

CtGroups groups_with(const std::string& pattern) {
  const std::string text = R"({"config_groups": {"a": {"targets": ["re:)" + pattern +
                           R"("]}, "b": {"targets": ["re:zz"]}}})";
  return {safetensors::weights::parse_json(text, "config.json", Duplicates::refused, {}),
          "config.json"};
}

/// Returns after how many names of 1 KiB, of at most 10,000, find() fails.
int names_until_limit(const CtGroups& groups) {
  const std::string name(1024, 'x');
  for (int count = 0; count < 10'000; ++count) {
    try {
      CHECK(groups.find(name) == nullptr);
    } catch (const WeightsError& error) {
      CHECK(error.code() == Errc::limit);
      CHECK(std::string(error.what()).find("10,000,000,000 steps") != std::string::npos);
      return count;
    }
  }
  return 10'000;
}

}  // namespace

TEST_CASE("config groups: the names of all modules together take a bounded number of steps") {
  const int count = names_until_limit(groups_with("y" + std::string(16'000, 'x')));
  CHECK(count > 500);
  CHECK(count < 700);
  CHECK(names_until_limit(groups_with(".*y")) == 10'000);
}
