// Which entries of a configuration match no module.
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.hpp"
#include "schemes/module_rules.hpp"

namespace {

using safetensors::weights::Duplicates;
using safetensors::weights::ModuleRule;

constexpr std::string_view kLlama[] = {
    "model.embed_tokens.weight",
    "model.layers.0.mlp-x.weight",
    "model.layers.0.mlp.down_proj.weight_packed",
    "model.layers.0.mlp.experts.gate_up_proj",
    "model.layers.0.self_attn.q_proj.qweight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.visual.blocks.7.attn.qkv.weight",
};

std::vector<std::string> said_of(const std::string& json,
                                 std::optional<std::int64_t> absent_from = {}) {
  const auto rules = safetensors::weights::read_module_rules(
      safetensors::weights::parse_json(json, "config.json", Duplicates::refused, {}));
  std::vector<std::string> warnings;
  safetensors::weights::say_unmatched(rules, kLlama, absent_from, warnings);
  return warnings;
}

}  // namespace

TEST_CASE("module rules: lists of usual checkpoints are no news") {
  for (const std::string_view json : {
           R"({"ignore": ["lm_head", "re:.*lm_head", "re:vision_tower.*", "re:.*mlp.gate$"]})",
           R"({"ignore": null, "modules_to_not_convert": "x", "exclude_modules": [1, "*router*"]})",
           R"({"modules_to_not_convert": ["lm_head", "visual", "gate", "model.layers.1",
               "model.layers.1.self_attn.q_proj", "language_model.model.layers.0.self_attn"]})",
           R"({"llm_int8_skip_modules": ["multi_modal_projector", "visual.blocks.7.attn"]})",
           R"({"modules_to_not_convert": ["model.layers.*.self_attn", "model.embed_tokens"]})",
           R"({"exclude_modules": ["model.layers.0.self_attn*", "model.layers.1*", "lm_head"]})",
           // Experts may be in one tensor.
           R"({"ignore": ["model.layers.0.mlp.experts.3.gate_proj"]})",
           R"({"config_groups": {"a": {"targets": ["Linear", "re:.*no_such_part"]},
                                 "b": {"targets": ["Qwen3MoeMLP", "lm_head"]}}})",
           // Alternatives, of which one matches.
           R"({"config_groups": {"a": {"targets": ["re:.*none", "re:.*down_proj$", "re:zz"]},
                                 "b": {"targets": ["re:model\\.layers\\.0\\.self_attn"]}}})",
           R"({"quantized_layers": {"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}}})",
           R"({"dynamic": {"-:.*nothing": {}, "+:.*\\.0\\..*q_proj": {}, "lm_head": {},
                           "(?!x).*": {}, "model.layers.0": {}}})",
           R"({"extra_config": {"model.layers.0.mlp.down_proj": {"bits": 8}, "router": {"bits": 16},
                                ".*self_attn.*": {"bits": 8}}})",
       }) {
    CAPTURE(json);
    CHECK(said_of(std::string(json)).empty());
  }
}

TEST_CASE("module rules: entries of other models are named with their list") {
  using Said = std::vector<std::string>;
  CHECK(said_of(R"({"ignore": ["lm_head", "model.layers.9.mlp.gate"]})") ==
        Said{"`ignore` has 1 entry that matches no module: `model.layers.9.mlp.gate`"});
  CHECK(said_of(R"({"exclude_modules": ["layers.2*", "layers.3", "layers.4.a", "layers.5"],
                    "modules_to_not_convert": ["model.layers.0.mlp"],
                    "llm_int8_skip_modules": ["model.layers.1.mlp"]})") ==
        Said{"`exclude_modules` has 4 entries that match no module: `layers.2*`, `layers.3`, "
             "`layers.4.a`, ...",
             "`llm_int8_skip_modules` has 1 entry that matches no module: `model.layers.1.mlp`"});
  CHECK(said_of(R"({"config_groups": {"a": {"targets": ["re:.*none", "re:zz$"]},
                                      "b": {"targets": ["model.layers.0.mlp.up_proj"]}}})") ==
        Said{"`config_groups` has 3 entries that match no module: `re:.*none`, `re:zz$`, "
             "`model.layers.0.mlp.up_proj`"});
  CHECK(said_of(R"({"quantized_layers": {"model.embed": {}, "model.layers.0.mlp.down": {}}})") ==
        Said{"`quantized_layers` has 2 entries that match no module: `model.embed`, "
             "`model.layers.0.mlp.down`"});
  CHECK(said_of(R"({"dynamic": {"+:.*\\.9\\..*": {}, "-:.*\\.9\\..*": {}}})") ==
        Said{"`dynamic` has 1 entry that matches no module: `+:.*\\.9\\..*`"});
  CHECK(said_of(R"({"extra_config": {"model.layers.9": {"bits": 16}, ".*gate$": {"bits": 8}}})") ==
        Said{"`extra_config` has 2 entries that match no module: `model.layers.9`, `.*gate$`"});
}

TEST_CASE("module rules: layers that predict further tokens may be absent") {
  const std::string json = R"({"ignore": ["model.layers.2.eh_proj", "model.layers.1.mlp"]})";
  CHECK(said_of(json, 2) ==
        std::vector<std::string>{
            "`ignore` has 1 entry that matches no module: `model.layers.1.mlp`"});
  CHECK(said_of(json, 3).front().starts_with("`ignore` has 2 entries"));
}

TEST_CASE("module rules: patterns that cost too much are taken for matches") {
  const std::string name(500'000, 'x');
  const std::vector<std::string_view> names(20, name);
  const std::string json = R"({"dynamic": {".*y)" + std::string(900, 'z') + R"(": {}}})";
  const auto rules = safetensors::weights::read_module_rules(
      safetensors::weights::parse_json(json, "config.json", Duplicates::refused, {}));
  REQUIRE(rules.size() == 1);
  std::vector<std::string> warnings;
  safetensors::weights::say_unmatched(rules, names, {}, warnings);
  CHECK(warnings.empty());
}
