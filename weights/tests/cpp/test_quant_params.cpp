// The choice of a pack's parameters, with every combination of evidence.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "dequant/dequant.hpp"
#include "hf/quant_params.hpp"

using safetensors::Dtype;
using safetensors::weights::candidates_of;
using safetensors::weights::choose_quant;
using safetensors::weights::parse_quant_mode;
using safetensors::weights::QuantChoice;
using safetensors::weights::QuantMode;
using safetensors::weights::QuantParams;
using safetensors::weights::RowEvidence;

namespace {

std::vector<QuantParams> affine_params() {
  std::vector<QuantParams> all;
  for (const int bits : {1, 2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) all.push_back({QuantMode::affine, bits, group});
  }
  return all;
}

constexpr std::array<std::uint64_t, 12> kRows = {96,   128,  192,  512,  1024,  2048,
                                                 2880, 4096, 7168, 8192, 16384, 32768};

/// The shapes of a pack with these parameters.
struct Shapes {
  Shapes(const QuantParams& truth, std::uint64_t row)
      : words(row * static_cast<std::uint64_t>(truth.bits) / 32),
        groups(row / static_cast<std::uint64_t>(truth.group_size)),
        candidates(candidates_of(words, groups, Dtype::kF16)) {}
  std::uint64_t words;
  std::uint64_t groups;
  std::vector<QuantParams> candidates;

  [[nodiscard]] std::uint64_t row_of(const QuantParams& params) const {
    return groups * static_cast<std::uint64_t>(params.group_size);
  }
  [[nodiscard]] bool allow(const QuantParams& params) const {
    return std::ranges::find(candidates, params) != candidates.end();
  }
};

/// Calls a function with every pack, every configuration and every row length in config.json.
template <typename Check>
void for_all(const Check& check) {
  const std::vector<QuantParams> params = affine_params();
  for (const QuantParams& truth : params) {
    for (const std::uint64_t row : kRows) {
      if (row % static_cast<std::uint64_t>(truth.group_size) != 0) continue;
      const Shapes shapes(truth, row);
      for (const QuantParams& model : params) {
        check(truth, row, shapes, model, std::optional<std::uint64_t>());
        for (const std::uint64_t config : kRows) check(truth, row, shapes, model, config);
      }
    }
  }
}

}  // namespace

TEST_CASE("each mode has a name, which is parsed") {
  for (const QuantMode mode :
       {QuantMode::affine, QuantMode::mxfp4, QuantMode::mxfp8, QuantMode::nvfp4}) {
    CHECK(parse_quant_mode(name(mode)) == mode);
  }
  CHECK(parse_quant_mode("nvfp4") == QuantMode::nvfp4);
  for (const char* const text : {"", "Affine", "mxfp", "mxfp44"})
    CHECK_FALSE(parse_quant_mode(text));
}

TEST_CASE("the shapes of a pack leave at most three kinds, the true one among them") {
  for (const QuantParams& truth : affine_params()) {
    for (const std::uint64_t row : kRows) {
      if (row % static_cast<std::uint64_t>(truth.group_size) != 0) continue;
      const Shapes shapes(truth, row);
      CHECK(shapes.allow(truth));
      CHECK(shapes.candidates.size() <= 3);
      for (const QuantParams& found : shapes.candidates) {
        CHECK(safetensors::weights::is_known(found));
        CHECK(shapes.words * 32 == shapes.row_of(found) * static_cast<std::uint64_t>(found.bits));
      }
    }
  }
  const auto fp = [](std::uint64_t words, std::uint64_t groups) {
    return candidates_of(words, groups, Dtype::kU8);
  };
  CHECK(fp(8, 4) == std::vector<QuantParams>{{QuantMode::nvfp4, 4, 16}});
  CHECK(fp(8, 2) == std::vector<QuantParams>{{QuantMode::mxfp4, 4, 32}});
  CHECK(fp(16, 2) == std::vector<QuantParams>{{QuantMode::mxfp8, 8, 32}});
  CHECK(fp(32, 2).empty());
}

TEST_CASE("shapes that fit no pack, or overflow, leave no candidate") {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;
  for (const auto& [words, groups] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {0, 0}, {8, 0}, {0, 8}, {7, 3}, {1, 4}, {64, 1}, {kHuge, 8}, {kHuge / 2, kHuge}}) {
    CAPTURE(words);
    CHECK(candidates_of(words, groups, Dtype::kF16).empty());
    const QuantChoice choice = choose_quant({}, groups, {}, QuantParams{}, QuantParams{});
    CHECK_FALSE(choice.params);
    CHECK_FALSE(choice.remark.empty());
  }
}

TEST_CASE("a known row length, or the model's own parameters, determine the right choice") {
  for_all([](const QuantParams& truth, std::uint64_t row, const Shapes& shapes,
             const QuantParams& model, const std::optional<std::uint64_t>& config) {
    const auto choose = [&](const RowEvidence& evidence) {
      return choose_quant(shapes.candidates, shapes.groups, evidence, model, {});
    };
    const QuantChoice by_tensors = choose({row, {}, config});
    REQUIRE(by_tensors.params == truth);
    REQUIRE(by_tensors.remark.empty() == (model == truth));
    if (model == truth) REQUIRE(choose({{}, {}, config}).params == truth);
    if (model == truth) REQUIRE(choose({{}, row, config}).remark.empty());
  });
}

TEST_CASE("a silent wrong choice needs a false configuration that nothing contradicts") {
  std::size_t silent = 0;
  for_all([&](const QuantParams& truth, std::uint64_t row, const Shapes& shapes,
              const QuantParams& model, const std::optional<std::uint64_t>& config) {
    for (const std::optional<std::uint64_t>& likely :
         {std::optional<std::uint64_t>(), std::optional(row), std::optional(row * 2)}) {
      const QuantChoice choice =
          choose_quant(shapes.candidates, shapes.groups, {{}, likely, config}, model, {});
      if (choice.params) REQUIRE(shapes.allow(*choice.params));
      if (choice.params == truth || !choice.remark.empty()) continue;
      ++silent;
      REQUIRE(choice.params == model);
      const auto& suggested = likely ? likely : config;
      REQUIRE((!suggested || *suggested == shapes.row_of(model)));
    }
  });
  CHECK(silent > 0);
}

TEST_CASE("the caller's parameters decide if no other evidence does") {
  const QuantParams truth{QuantMode::affine, 8, 32};
  const Shapes shapes(truth, 4096);
  const QuantParams model{QuantMode::affine, 3, 64};  // does not fit
  const QuantChoice open = choose_quant(shapes.candidates, shapes.groups, {}, model, {});
  CHECK_FALSE(open.params);
  for (const char* text : {"2 bits, groups of 128", "4 bits, groups of 64", "8 bits, groups of 32",
                           "3 bits, groups of 64", "quant"}) {
    CHECK(open.remark.find(text) != std::string::npos);
  }
  CHECK(choose_quant(shapes.candidates, shapes.groups, {}, model, truth).params == truth);
  CHECK_FALSE(choose_quant(shapes.candidates, shapes.groups, {}, model, model).params);
}
