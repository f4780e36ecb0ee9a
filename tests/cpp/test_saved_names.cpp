// The names of files that belong to a model that was saved.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "safetensors/detail/saved_names.hpp"
#include "safetensors/shard_plan.hpp"
#include "support.hpp"

using safetensors::shard_file_name;
namespace detail = safetensors::detail;

TEST_CASE("names of shards") {
  for (const std::string name : {"model", "a.b", "a[bc]*", "model-00001-of-00002", "shard-1-m"}) {
    for (std::size_t i = 1; i <= 3; ++i)
      CHECK(detail::is_shard_of(name, shard_file_name(name, i, 3)));
    CHECK_FALSE(detail::is_shard_of(name, name + ".safetensors"));
    CHECK_FALSE(detail::is_shard_of(name, name + "-1-of-2.safetensors"));
    CHECK_FALSE(detail::is_shard_of(name, "model.safetensors"));
    CHECK(detail::is_file_of(name, name + ".safetensors"));
    CHECK(detail::is_file_of(name, name + ".safetensors.index.json"));
  }
  const std::string whole = "model-00001-of-00002.safetensors";
  for (const std::string& file : {whole + "\n", "x" + whole, whole + "x", "../" + whole,
                                  std::string("model-00001-of-00002-safetensors"),
                                  std::string("model-000001-of-00002.safetensors"),
                                  std::string("model-00001-of-100000.safetensors")}) {
    CHECK_FALSE(detail::is_shard_of("model", file));
  }
}

TEST_CASE("the model of a file") {
  CHECK(detail::model_of("m.safetensors") == "m");
  CHECK(detail::model_of("m.safetensors.index.json") == "m");
  CHECK(detail::model_of("m-00001-of-00002.safetensors") == "m");
  CHECK(detail::model_of("m-1-of-2.safetensors") == "m-1-of-2");
  CHECK(detail::model_of("config.json") == "config.json");
}

TEST_CASE("the name under which a changed model is saved") {
  CHECK(detail::name_to_save("m.safetensors.index.json") == "m");
  CHECK(detail::name_to_save("m.safetensors.index.fp16.json") == "m.fp16");
  CHECK(detail::name_to_save("m-00001-of-00002.safetensors") == "m");
  CHECK(detail::name_to_save("m-00001-of-00002.fp16.safetensors") == "m.fp16");
  CHECK(detail::name_to_save("m.safetensors") == "model");
  CHECK(detail::name_to_save("shard-00001-m-00001-of-00001.safetensors") == "model");
  CHECK(detail::name_to_save("") == "model");
}

TEST_CASE("files of other models") {
  using Names = std::vector<std::string>;
  const Names ours = {"model.safetensors", "model.safetensors.index.json"};
  for (const char* name : {"._model.safetensors", ".model.safetensors.0123456789abcdef.tmp",
                           ".safetensors", "step1.safetensors-patch", "model.safetensors.bak",
                           "model.sums.json", "config.json", "model.bin", "model.safetensors"}) {
    CHECK(detail::file_of_other_model(Names{name}, ours).empty());
  }
  for (const char* name :
       {"a.safetensors", "model-00001-of-00002.safetensors", "a.safetensors.index.json",
        "model.safetensors.index.fp16.json", "shard-00001-m-00001-of-00001.safetensors"}) {
    const Names names = {"model.safetensors", "z.safetensors", name};
    CHECK(detail::file_of_other_model(names, ours) == name);
    CHECK(detail::file_of_other_model(Names{name}, Names{name}).empty());
  }
}

TEST_CASE("names that files may be named after") {
  using namespace std::string_literals;
  for (const std::string& name :
       {""s, "."s, ".."s, ".model"s, "a/b"s, "a\\b"s, "a\0"s, std::string(229, 'x')}) {
    CHECK(test::error_of([&] { detail::check_model_name(name); }).code() ==
          test::ErrorCode::kInvalidArgument);
  }
  for (const char* name : {"model", "a.b", "a\nb", "\xC3\xA4"}) detail::check_model_name(name);
  CHECK(std::string(test::error_of([] { detail::check_model_name("a/'\n\xFF"); }).what())
            .starts_with("not a name for a model's files: 'a/\\'\\n\\udcff' (it may not"));
}

TEST_CASE("the small files of a model") {
  for (const char* name :
       {"config.json", "tokenizer.model", "LICENSE-2", "USE_POLICY.md", "a.py", "source.spm",
        "bpe.codes", "prophetnet.tokenizer", "tokenizer.model.v3", "quant_config.json"}) {
    CHECK(detail::is_companion(name));
  }
  for (const char* name : {"", ".json", "a/config.json", "model.safetensors", "m.sums.json",
                           "m.safetensors.index.json", "m.safetensors.index.fp16.json",
                           "pytorch_model.bin.index.json", "run.sh"}) {
    CHECK_FALSE(detail::is_companion(name));
  }
  CHECK(detail::describes_quantised("quant_config.json"));
  CHECK_FALSE(detail::describes_quantised("config.json"));
}
