// C: the configuration and the metadata as values.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "c_weights_support.hpp"
#include "gguf_support.hpp"
#include "safetensors/save.hpp"
#include "safetensors/weights/provider.hpp"
#include "support.hpp"

using safetensors::weights::WeightProvider;
using test::open_weights;
using test::text;
using test::Weights;

namespace {

safetensors_value config(const Weights& weights, std::string_view field) {
  safetensors_value value{};
  CAPTURE(field);
  REQUIRE(safetensors_weights_config(weights.get(), field.data(), field.size(), &value, nullptr) ==
          0);
  CHECK(value.stored_type == -1);
  return value;
}

safetensors_value metadata(const Weights& weights, std::string_view key) {
  safetensors_value value{};
  REQUIRE(safetensors_weights_metadata(weights.get(), key.data(), key.size(), &value, nullptr) ==
          0);
  return value;
}

std::vector<std::string> strings_of(const safetensors_value& value) {
  std::vector<std::string> texts;
  const auto* const items = static_cast<const safetensors_text*>(value.items);
  for (std::size_t i = 0; i < value.count; ++i) texts.push_back(text(items[i].data, items[i].size));
  return texts;
}

}  // namespace

TEST_CASE("C: the configuration by the names of its fields") {
  const Weights weights = open_weights("mlx/gemma2_q4_g64_bf16");
  const auto model = WeightProvider::open(test::model_path("mlx/gemma2_q4_g64_bf16"));
  const auto& wanted = model.config();
  CHECK(config(weights, "n_layers").kind == SAFETENSORS_VALUE_INTEGER);
  CHECK(config(weights, "n_layers").integer == wanted.n_layers);
  CHECK(config(weights, "n_layers").number == static_cast<double>(*wanted.n_layers));
  CHECK(config(weights, "norm_eps").kind == SAFETENSORS_VALUE_NUMBER);
  CHECK(config(weights, "norm_eps").number == wanted.norm_eps);
  CHECK(config(weights, "rope_theta").number == wanted.rope_theta);
  const safetensors_value architecture = config(weights, "architecture");
  CHECK(architecture.kind == SAFETENSORS_VALUE_STRING);
  CHECK(text(architecture.string, architecture.string_size) == wanted.architecture);
  CHECK(config(weights, "tie_word_embeddings").kind == SAFETENSORS_VALUE_BOOLEAN);
  CHECK(config(weights, "tie_word_embeddings").integer == (wanted.tie_word_embeddings ? 1 : 0));
  CHECK(std::string(config(weights, "rope_style").string) == name(*wanted.rope_style));
  CHECK(std::string(config(weights, "quantization.mode").string) == "affine");
  CHECK(config(weights, "quantization.bits").integer == 4);
  CHECK(config(weights, "rope_scaling.factor").kind == SAFETENSORS_VALUE_NONE);
  const safetensors_value eos = config(weights, "eos_token_ids");
  CHECK((eos.count == wanted.eos_token_ids.size() &&
         (eos.count == 0 || eos.kind == SAFETENSORS_VALUE_INTEGERS)));
  const safetensors_value kinds = config(weights, "layer_kinds");
  REQUIRE(kinds.count == wanted.layer_kinds.size());
  for (std::size_t i = 0; i < kinds.count; ++i) {
    CHECK(strings_of(kinds)[i] == name(wanted.layer_kinds[i]));
  }

  safetensors_error error{};
  safetensors_value value{};
  CHECK(safetensors_weights_config(weights.get(), SAFETENSORS_TEXT("n_layer"), &value, &error) ==
        SAFETENSORS_INVALID_ARGUMENT);
  CHECK(std::string(error.text) == "the configuration has no field `n_layer`");
}

TEST_CASE("C: values of nested fields stay valid") {
  const test::TempDir folder;
  test::write_text(folder / "config.json", R"({"model_type": "llama",
    "rope_scaling": {"type": "longrope", "long_factor": [1.25, 1.5], "short_factor": [2.5]}})");
  const std::vector<test::OwnTensor> tensors = {
      test::tensor_of("model.norm.weight", test::Dtype::kF32, {4}, 1)};
  safetensors::save_file(test::views_of(tensors), folder / "model.safetensors");
  const std::string path = folder.path().string();
  safetensors_weights* opened = nullptr;
  REQUIRE(safetensors_weights_open(path.data(), path.size(), nullptr, &opened, nullptr) == 0);
  const Weights weights(opened);

  const safetensors_value factors = config(weights, "rope_scaling.long_factor");
  const safetensors_value type = config(weights, "rope_scaling.type");
  REQUIRE(factors.kind == SAFETENSORS_VALUE_NUMBERS);
  REQUIRE(factors.count == 2);
  CHECK(static_cast<const double*>(factors.items)[0] == 1.25);
  CHECK(static_cast<const double*>(factors.items)[1] == 1.5);
  CHECK(std::string(type.string) == "longrope");
  CHECK(config(weights, "rope_scaling.long_factor").items == factors.items);
  CHECK(config(weights, "rope_scaling.type").string == type.string);
}

TEST_CASE("C: the list of fields has each once, and each can be asked for") {
  const Weights weights = open_weights("gguf/llama_q4_k_m.gguf");
  std::size_t count = 0;
  const safetensors_text* const fields = safetensors_weights_config_fields(&count);
  REQUIRE(fields != nullptr);
  std::set<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string field = text(fields[i].data, fields[i].size);
    CHECK(names.insert(field).second);
    (void)config(weights, field);
  }
  CHECK(names.contains("rope_scaling.long_factor"));
  CHECK(names.contains("quantization.group_size"));
  CHECK_FALSE(names.contains("rope_scaling"));
  CHECK(safetensors_weights_config_fields(nullptr) == fields);
}

TEST_CASE("C: the metadata of a GGUF file has its types") {
  const Weights weights = open_weights("gguf/llama_q4_k_m.gguf");
  const auto model = WeightProvider::open(test::model_path("gguf/llama_q4_k_m.gguf"));
  safetensors_weights_info info{};
  REQUIRE(safetensors_weights_look(weights.get(), &info, nullptr) == 0);
  std::set<std::int32_t> kinds;
  std::size_t index = 0;
  for (const auto& item : model.metadata()) {
    CAPTURE(item.key);
    safetensors_text key{};
    safetensors_value value{};
    REQUIRE(safetensors_weights_metadata_at(weights.get(), index++, &key, &value, nullptr) == 0);
    CHECK(text(key.data, key.size) == item.key);
    CHECK(metadata(weights, item.key).items == value.items);  // made once
    CHECK(metadata(weights, item.key).string == value.string);
    kinds.insert(value.kind);
    if (const auto array = item.value.as_array()) {
      CHECK(value.stored_type == static_cast<std::int32_t>(array->element_type()));
      CHECK(value.count == array->size());
      if (const auto raw = array->raw()) {
        CHECK(value.kind == SAFETENSORS_VALUE_ARRAY);
        CHECK(std::memcmp(value.items, raw->data(), raw->size()) == 0);
      } else {
        std::vector<std::string> wanted;
        for (const auto& each : *array) wanted.emplace_back(each.as_string().value());
        CHECK(value.kind == SAFETENSORS_VALUE_STRINGS);
        CHECK(strings_of(value) == wanted);
      }
      continue;
    }
    CHECK(value.stored_type == static_cast<std::int32_t>(item.value.type()));
    if (const auto string = item.value.as_string()) {
      CHECK(text(value.string, value.string_size) == *string);
    } else if (const auto integer = item.value.as_int64()) {
      CHECK(value.integer == *integer);
    } else if (const auto number = item.value.as_float()) {
      CHECK(value.number == *number);
    }
  }
  CHECK(index == info.metadata_count);
  CHECK(kinds.size() >= 4);
  const safetensors_value none = metadata(weights, "no.such.key");
  CHECK(none.kind == SAFETENSORS_VALUE_NONE);
  CHECK(none.stored_type == -1);
  safetensors_value value{};
  CHECK(safetensors_weights_metadata_at(weights.get(), index, nullptr, &value, nullptr) ==
        SAFETENSORS_INDEX_OUT_OF_BOUNDS);
}

TEST_CASE("C: numbers above INT64_MAX, arrays of arrays and text of a stranger") {
  const test::TempDir folder;
  const std::string path = (folder / "m.gguf").string();
  test::write_text(
      path, test::gguf_with([](test::GgufFileText& file) {
        using test::MetaType;
        file.item("u", MetaType::u64, test::le(UINT64_MAX));
        file.item(
            "nested", MetaType::array,
            test::gguf_array(9, 2, test::gguf_array(0, 1, "a") + test::gguf_array(0, 1, "b")));
        file.item("text", MetaType::string, test::gguf_string(std::string("a\0\xFF", 3)));
        file.item("texts", MetaType::array,
                  test::gguf_array(8, 2, test::gguf_string("") + test::gguf_string("b")));
        file.item("none", MetaType::array, test::gguf_array(8, 0, ""));
      }));
  safetensors_weights* opened = nullptr;
  safetensors_error error{};
  (void)safetensors_weights_open(path.data(), path.size(), nullptr, &opened, &error);
  REQUIRE(std::string(error.text).empty());
  const Weights weights(opened);
  CHECK(metadata(weights, "u").kind == SAFETENSORS_VALUE_UNSIGNED);
  CHECK(static_cast<std::uint64_t>(metadata(weights, "u").integer) == UINT64_MAX);
  CHECK(metadata(weights, "nested").kind == SAFETENSORS_VALUE_NESTED);
  CHECK(metadata(weights, "nested").count == 2);
  CHECK(metadata(weights, "nested").items == nullptr);
  const safetensors_value value = metadata(weights, "text");
  CHECK(text(value.string, value.string_size) == std::string("a\0\xFF", 3));
  CHECK(strings_of(metadata(weights, "texts")) == std::vector<std::string>{"", "b"});
  CHECK(metadata(weights, "none").kind == SAFETENSORS_VALUE_STRINGS);
  CHECK(metadata(weights, "none").count == 0);
  safetensors_weight found{};
  CHECK(safetensors_weights_find(weights.get(), "t", 1, &found, nullptr) == 0);
}

TEST_CASE("C: lists of a model") {
  const Weights weights = open_weights("gguf/llama_split_q4_0-00002-of-00003.gguf");
  std::size_t count = 0;
  const safetensors_text* const files =
      safetensors_weights_list(weights.get(), SAFETENSORS_LIST_FILES, &count);
  REQUIRE(count == 3);
  CHECK(text(files[2].data, files[2].size).ends_with("llama_split_q4_0-00003-of-00003.gguf"));
  CHECK(safetensors_weights_list(weights.get(), SAFETENSORS_LIST_FILES, nullptr) == files);
  CHECK(safetensors_weights_list(weights.get(), SAFETENSORS_LIST_UNMAPPED, &count) == nullptr);
  CHECK(count == 0);
}
