// Which tensors go to which file of a model, what the files are called, and the index.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/shard_plan.hpp"
#include "support.hpp"

using safetensors::ErrorCode;
using safetensors::plan_shards;

namespace {

using Sizes = std::vector<std::uint64_t>;

std::vector<Sizes> divided(const Sizes& sizes, std::uint64_t most) {
  std::vector<Sizes> shards;
  for (const std::vector<std::size_t>& tensors : plan_shards(sizes, most).shards) {
    Sizes& of_shard = shards.emplace_back();
    for (const std::size_t i : tensors) of_shard.push_back(sizes[i]);
  }
  return shards;
}

}  // namespace

TEST_CASE("tensors are divided in order, and a large one is a file of its own") {
  CHECK(divided({6, 6, 2, 6, 2, 2}, 10) == std::vector<Sizes>{{6}, {6, 2}, {6, 2, 2}});
  CHECK(divided({2, 11, 2}, 10) == std::vector<Sizes>{{11}, {2, 2}});
  CHECK(divided({11, 11}, 10) == std::vector<Sizes>{{11}, {11}});
  CHECK(divided({0, 0, 10, 0}, 10) == std::vector<Sizes>{{0, 0, 10, 0}});
  CHECK(divided({11, 0}, 10) == std::vector<Sizes>{{11}, {0}});
  CHECK(divided({}, 10) == std::vector<Sizes>{{}});
  CHECK(plan_shards(Sizes{2, 11, 2}, 10).total_nbytes == 15);
}

TEST_CASE("a plan of tensors that are not written yet") {
  const std::vector<std::uint64_t> shape = {2, 3};
  const std::vector<safetensors::TensorSpec> specs = {{"a", shape, test::Dtype::kF32},
                                                      {"b", shape, test::Dtype::kU8}};
  const safetensors::ShardPlan plan = plan_shards(specs, 24);
  CHECK(plan.shards == std::vector<std::vector<std::size_t>>{{0}, {1}});
  CHECK(plan.total_nbytes == 30);
  CHECK(plan_shards(specs).shards.size() == 1);
  const std::vector<safetensors::TensorSpec> bad = {{"__metadata__", shape}};
  CHECK(test::error_of([&] { (void)plan_shards(bad); }).code() == ErrorCode::kInvalidArgument);
}

TEST_CASE("limits that are no limits, and too many files") {
  CHECK(test::error_of([] { (void)plan_shards(Sizes{1}, 0); }).code() ==
        ErrorCode::kInvalidArgument);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  CHECK(test::error_of([] { (void)plan_shards(Sizes{kMax, 1}, kMax); }).code() ==
        ErrorCode::kOverflow);
  Sizes sizes(safetensors::kMaxShards, 2);
  CHECK(plan_shards(sizes, 1).shards.size() == safetensors::kMaxShards);
  sizes.push_back(2);
  const safetensors::Error error = test::error_of([&] { (void)plan_shards(sizes, 1); });
  CHECK(error.code() == ErrorCode::kInvalidArgument);
  CHECK(std::string_view(error.what()) ==
        "max_shard_nbytes=1 makes 100,000 shards; a model may have 99,999");
}

TEST_CASE("names of files") {
  CHECK(safetensors::shard_file_name("model", 1, 1) == "model.safetensors");
  CHECK(safetensors::shard_file_name("a b", 2, 2) == "a b-00002-of-00002.safetensors");
  CHECK(safetensors::index_file_name("m") == "m.safetensors.index.json");
}

TEST_CASE("the index is what json.dumps of Python writes") {
  using Names = std::vector<std::string_view>;
  const std::vector<Names> shards = {{"b", "q\"\n\x7F"}, {"\xC3\xA4", "\xF0\x9F\x98\x80"}};
  CHECK(safetensors::index_text("m\xFF", shards, 12) ==
        "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
        "    \"b\": \"m\\udcff-00001-of-00002.safetensors\",\n"
        "    \"q\\\"\\n\\u007f\": \"m\\udcff-00001-of-00002.safetensors\",\n"
        "    \"\\u00e4\": \"m\\udcff-00002-of-00002.safetensors\",\n"
        "    \"\\ud83d\\ude00\": \"m\\udcff-00002-of-00002.safetensors\"\n  }\n}");
  const std::vector<Names> none(2);
  CHECK(safetensors::index_text("m", none, 0) ==
        "{\n  \"metadata\": {\n    \"total_size\": 0\n  },\n  \"weight_map\": {}\n}");
}
