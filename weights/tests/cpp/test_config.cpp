// The configuration table: config.json and GGUF metadata.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "gguf/config.hpp"
#include "gguf_support.hpp"
#include "hf/config.hpp"
#include "safetensors/weights/provider.hpp"

using safetensors::weights::Json;
using safetensors::weights::LayerKind;
using safetensors::weights::ModelConfig;
using safetensors::weights::RopeStyle;
using safetensors::weights::WeightProvider;
using test::gguf_array;
using test::gguf_string;
using test::le;
using test::MetaType;

namespace {

ModelConfig config_of(std::string_view text) {
  using namespace safetensors::weights;
  return read_hf_config(parse_json(text, "config.json", Duplicates::last_counts, {}), nullptr,
                        "config.json")
      .model;
}

}  // namespace

TEST_CASE("fields of config.json") {
  const ModelConfig config = config_of(R"({
    "model_type": "deepseek_v3", "qk_rope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": null,
    "layer_types": ["sliding_attention", "full_attention", "new"], "hidden_act": "silu",
    "rope_scaling": {"type": "longrope", "long_factor": [1, 1.5]}})");
  CHECK(config.rope_style == RopeStyle::interleaved);
  CHECK(config.rope_dim == 64);
  CHECK(config.v_head_dim == 128);
  CHECK_FALSE(config.q_lora_rank);
  CHECK(config.activation == "silu");
  CHECK(config.layer_kinds == std::vector{LayerKind::sliding, LayerKind::full, LayerKind::other});
  REQUIRE(config.rope_scaling);
  CHECK(config.rope_scaling->long_factor == std::vector{1.0, 1.5});
  REQUIRE(config.raw != nullptr);
  CHECK(config.raw->find("v_head_dim")->as_integer() == 128);
  CHECK(config.raw->find("q_lora_rank")->is_null());
}

TEST_CASE("fields of GGUF metadata") {
  const std::string text = test::gguf_with([](auto& file) {
    file.item("general.architecture", MetaType::string, gguf_string("glm4"));
    file.item("glm4.rope.dimension_count", MetaType::u32, le(64U));
    file.item("glm4.rope.dimension_sections", MetaType::array,
              gguf_array(5, 4, le(16) + le(24) + le(24) + le(0)));
    file.item("glm4.attention.sliding_window_pattern", MetaType::array,
              gguf_array(7, 2, std::string("\1\0", 2)));
  });
  const auto header = test::parse_gguf(test::bytes_of(text));
  const ModelConfig config =
      safetensors::weights::read_gguf_config(header.metadata, 0, true, "m.gguf");
  CHECK(config.rope_style == RopeStyle::mrope);
  CHECK(config.rope_dim == 64);
  CHECK(config.rope_sections == std::vector<std::int64_t>{16, 24, 24, 0});
  CHECK(config.layer_kinds == std::vector{LayerKind::sliding, LayerKind::full});
  CHECK(config.norm_weight_offset == 0.0);
  CHECK(config.raw == nullptr);
}

TEST_CASE("the raw configuration of a model") {
  const auto mlx = WeightProvider::open(test::weights_data() / "mlx/gemma2_q4_g64_bf16");
  REQUIRE(mlx.raw_config() != nullptr);
  const Json* type = mlx.raw_config()->find("model_type");
  REQUIRE(type != nullptr);
  CHECK(*type->as_string() == mlx.config().architecture);
  CHECK(mlx.norm_weight_offset_of("output_norm.weight") == 1.0);
  CHECK(mlx.norm_weight_offset_of("token_embedding.weight") == 0.0);
  CHECK(WeightProvider::open(test::weights_data() / "gguf/llama_q8_0.gguf").raw_config() ==
        nullptr);
}
