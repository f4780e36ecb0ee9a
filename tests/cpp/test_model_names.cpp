#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "format/model_names.hpp"
#include "safetensors/model_files.hpp"

using safetensors::ModelFileName;
using safetensors::parse_model_file_name;
using Kind = safetensors::ModelFileName::Kind;

namespace {

/// Returns the parts of a name as a text.
std::string parts_of(std::string_view file) {
  const ModelFileName parsed = parse_model_file_name(file);
  constexpr std::string_view kKinds[] = {"other", "single", "index", "shard", "rank", "part"};
  std::string text(kKinds[static_cast<std::size_t>(parsed.kind)]);
  text += " " + std::string(parsed.name);
  if (!parsed.variant.empty()) text += " variant " + std::string(parsed.variant);
  if (parsed.kind == Kind::kShard || parsed.kind == Kind::kRank) {
    text += " " + std::to_string(parsed.number) + " of " + std::to_string(parsed.total);
  }
  if (parsed.kind == Kind::kPart) text += " " + std::to_string(parsed.number);
  return text;
}

}  // namespace

TEST_CASE("names of a model's files are taken apart") {
  CHECK(parts_of("model.safetensors") == "single model");
  CHECK(parts_of("model.fp16.safetensors") == "single model.fp16");
  CHECK(parts_of("model-00002-of-00010.safetensors") == "shard model 2 of 10");
  CHECK(parts_of("a-b-1-of-000002.safetensors") == "shard a-b 1 of 2");
  CHECK(parts_of("model.fp16-00001-of-00002.safetensors") == "shard model.fp16 1 of 2");
  CHECK(parts_of("model-00001-of-00002.fp16.safetensors") == "shard model variant fp16 1 of 2");
  CHECK(parts_of("shard-00003-model-00001-of-00002.safetensors") == "rank model 1 of 2");
  CHECK(parts_of("weights.07.safetensors") == "part weights 7");
  CHECK(parts_of("model.safetensors.index.json") == "index model");
  CHECK(parts_of("model.safetensors.index.fp16.json") == "index model variant fp16");
  CHECK(parts_of("model.safetensors.fp16.index.json") == "index model variant fp16");
  CHECK(parts_of("model.fp16.safetensors.index.json") == "index model.fp16");
}

TEST_CASE("what is almost such a name is another one") {
  for (const std::string file :
       {"", ".safetensors", "model.bin", "model.safetensors-patch", "model.sums.json", ".json",
        "model.index.json", ".safetensors.index.json", "pytorch_model.bin.index.json",
        "model.safetensors.index.f-p.json"}) {
    CAPTURE(file);
    CHECK(parts_of(file) == "other ");
  }
  CHECK(parts_of("-1-of-2.safetensors") == "single -1-of-2");
  CHECK(parts_of("x-of-2.safetensors") == "single x-of-2");
  CHECK(parts_of("x--of-2.safetensors") == "single x--of-2");
  CHECK(parts_of("x-1-of-.safetensors") == "single x-1-of-");
  CHECK(parts_of("x-1-of-1234567890.safetensors") == "single x-1-of-1234567890");
  CHECK(parts_of("shard-x-model-1-of-2.safetensors") == "shard shard-x-model 1 of 2");
  CHECK(parts_of("shard-1-2-of-2.safetensors") == "shard shard-1 2 of 2");
  CHECK(parts_of("weights.x.safetensors") == "single weights.x");
}
