// The mapping to canonical names.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "names/names.hpp"

using safetensors::weights::map_gguf_names;
using safetensors::weights::map_hf_names;
using safetensors::weights::Mapped;
using safetensors::weights::name_less;

namespace {

using Names = std::vector<std::string_view>;

std::string shown(const Mapped& mapped) {
  if (mapped.kind == Mapped::Kind::canonical) return mapped.name;
  return mapped.kind == Mapped::Kind::ignored ? "(ignored)" : "(unmapped)";
}

/// Returns the canonical name of the last of the names.
std::string hf(Names names) { return shown(map_hf_names(names).back()); }
std::string gguf(Names names, std::string_view architecture = "llama") {
  return shown(map_gguf_names(names, architecture).back());
}

}  // namespace

TEST_CASE("names of Hugging Face's checkpoints") {
  const auto map = [](std::string_view name) { return hf({"model.embed_tokens.weight", name}); };
  CHECK(map("model.embed_tokens.weight") == "token_embedding.weight");
  CHECK(map("model.norm.weight") == "output_norm.weight");
  CHECK(map("model.final_layernorm.bias") == "output_norm.bias");
  CHECK(map("lm_head.weight") == "output.weight");
  CHECK(map("language_model.lm_head.scales") == "output.scales");
  CHECK(map("model.layers.0.input_layernorm.weight") == "layers.0.attention_norm.weight");
  CHECK(map("model.layers.11.self_attn.q_proj.bias") == "layers.11.attention.q.bias");
  CHECK(map("model.layers.3.self_attn.sinks") == "layers.3.attention.sinks");
  CHECK(map("model.layers.3.mlp.fc1.weight") == "layers.3.ffn.up.weight");
  CHECK(map("model.layers.3.block_sparse_moe.experts.12.w3.weight") ==
        "layers.3.ffn.experts.12.up.weight");
  CHECK(map("model.layers.3.mlp.experts.0.down_proj.weight") ==
        "layers.3.ffn.experts.0.down.weight");
  CHECK(map("model.layers.3.mlp.experts.gate_up_proj") == "layers.3.ffn.experts.gate_up");
  CHECK(map("model.layers.3.mlp.switch_mlp.up_proj.biases") == "layers.3.ffn.experts.up.biases");
  CHECK(map("model.layers.999999.mlp.gate.weight") == "layers.999999.ffn.router.weight");
  CHECK(map("model.layers.0.self_attn.rotary_emb.inv_freq") == "(ignored)");
  for (const char* name :
       {"model.layers.00.input_layernorm.weight", "model.layers.1000000.input_layernorm.weight",
        "model.layers.-1.input_layernorm.weight", "model.layers..input_layernorm.weight",
        "model.layers.0", "model.layers.0.", "model.layers.0.other.weight",
        "layers.0.mlp.fc1.weight", "model.layers.0.mlp.experts.01.w1.weight",
        "model.layers.0.mlp.experts.1.w4.weight", "", ".weight", "weight",
        "model.embed_tokens.weight.weight", "lm_head.weight.bias"}) {
    CAPTURE(name);
    CHECK(map(name) == "(unmapped)");
  }
}

TEST_CASE("the prefix is that of the embedding") {
  CHECK(hf({"embed_tokens.weight", "layers.0.mlp.fc1.weight"}) == "layers.0.ffn.up.weight");
  CHECK(hf({"language_model.model.embed_tokens.weight",
            "language_model.model.layers.0.mlp.fc1.weight"}) == "layers.0.ffn.up.weight");
  CHECK(hf({"model.language_model.embed_tokens.weight", "model.embed_tokens.weight",
            "model.language_model.norm.weight"}) == "output_norm.weight");
  CHECK(hf({"model.norm.weight"}) == "output_norm.weight");
  CHECK(hf({"other.embed_tokens.weight", "other.norm.weight"}) == "(unmapped)");
}

TEST_CASE("the meaning of the norm after attention depends on its layer") {
  const std::string_view after = "model.layers.1.post_attention_layernorm.weight";
  CHECK(hf({after}) == "layers.1.ffn_norm.weight");
  CHECK(hf({"model.layers.1.post_feedforward_layernorm.weight", after}) ==
        "layers.1.post_attention_norm.weight");
  CHECK(hf({"model.layers.2.post_feedforward_layernorm.weight", after}) ==
        "layers.1.ffn_norm.weight");
  CHECK(gguf({"blk.1.post_attention_norm.weight"}) == "layers.1.ffn_norm.weight");
  CHECK(gguf({"blk.1.ffn_norm.weight", "blk.1.post_attention_norm.weight"}) ==
        "layers.1.post_attention_norm.weight");
  CHECK(gguf({"blk.1.post_ffw_norm.weight", "blk.1.post_attention_norm.weight"}) ==
        "layers.1.post_attention_norm.weight");
}

TEST_CASE("names of other families") {
  CHECK(hf({"transformer.h.3.attn.c_attn.bias"}) == "layers.3.attention.qkv.bias");
  CHECK(hf({"h.3.ln_1.weight"}) == "layers.3.attention_norm.weight");
  CHECK(hf({"transformer.encoder.layers.3.mlp.dense_h_to_4h.weight"}) ==
        "layers.3.ffn.gate_up.weight");
  CHECK(hf({"bert.encoder.layer.3.attention.self.query.weight"}) == "layers.3.attention.q.weight");
  CHECK(hf({"backbone.layers.3.mixer.A_log"}) == "layers.3.ssm.a");
  CHECK(hf({"model.layers.3.linear_attn.dt_bias"}) == "layers.3.ssm.dt.bias");
  CHECK(hf({"model.layers.3.mlp.gate.e_score_correction_bias"}) ==
        "layers.3.ffn.router_correction.bias");
  CHECK(hf({"model.layers.3.moe.router_bias"}) == "layers.3.ffn.router_correction.bias");
  CHECK(hf({"model.layers.3.self_attn.attention_sink_bias"}) == "layers.3.attention.sinks");
  CHECK(hf({"model.layers.3.feed_forward.experts.5.w2.weight"}) ==
        "layers.3.ffn.experts.5.down.weight");
  CHECK(hf({"model.layers.3.shared_mlp.input_linear.weight"}) ==
        "layers.3.ffn.shared_expert.gate_up.weight");
  CHECK(hf({"model.layers.3.eh_proj.weight"}) == "layers.3.nextn.eh_proj.weight");
  CHECK(hf({"model.layers.3.mixer.in_proj.weight"}) == "layers.3.ssm.in.weight");
  CHECK(hf({"language_model.layers.3.self_attn.q_proj.weight"}) == "layers.3.attention.q.weight");
  CHECK(hf({"model.layers.3.mlp.ffn_sub_norm.weight"}) == "layers.3.ffn.sub_norm.weight");
  // A number that is part of the name.
  CHECK(hf({"decoder.block.3.layer.1.layer_norm.weight"}) ==
        "decoder.layers.3.cross_attention_norm.weight");
  CHECK(hf({"decoder.block.3.layer.2.layer_norm.weight"}) == "decoder.layers.3.ffn_norm.weight");
  CHECK(hf({"rwkv.blocks.0.pre_ln.weight"}) == "token_embedding_norm.weight");
  // Arctic
  CHECK(hf({"model.layers.3.residual_layernorm.weight",
            "model.layers.3.post_attention_layernorm.weight"}) ==
        "layers.3.ffn.experts.norm.weight");
  CHECK(hf({"model.layers.3.pre_mlp_layernorm.weight",
            "model.layers.3.post_attention_layernorm.weight"}) ==
        "layers.3.post_attention_norm.weight");
}

TEST_CASE("names of towers beside a language model") {
  const std::string_view text = "model.language_model.embed_tokens.weight";
  CHECK(hf({text, "model.visual.blocks.3.attn.qkv.weight"}) ==
        "vision.layers.3.attention.qkv.weight");
  CHECK(hf({text, "model.vision_tower.vision_model.encoder.layers.3.mlp.fc1.weight"}) ==
        "vision.layers.3.ffn.up.weight");
  CHECK(hf({text, "multi_modal_projector.linear_2.bias"}) == "projector.2.bias");
  CHECK(hf({text, "lm_head.weight"}) == "output.weight");
  // Only the language model itself has layers of a language model.
  CHECK(hf({text, "layers.3.self_attn.q_proj.weight"}) == "(unmapped)");
  CHECK(hf({text, "model.layers.3.self_attn.q_proj.weight"}) == "(unmapped)");
  CHECK(hf({text, "norm.weight"}) == "(unmapped)");
}

TEST_CASE("names of GGUF files") {
  CHECK(gguf({"token_embd.weight"}) == "token_embedding.weight");
  CHECK(gguf({"rope_freqs.weight"}) == "rope_freqs.weight");
  CHECK(gguf({"blk.7.attn_q.bias"}) == "layers.7.attention.q.bias");
  CHECK(gguf({"blk.7.ffn_gate_exps.weight"}) == "layers.7.ffn.experts.gate.weight");
  CHECK(gguf({"blk.7.ffn_down.3.weight"}) == "layers.7.ffn.experts.3.down.weight");
  CHECK(gguf({"blk.7.ffn_gate_inp_shexp.weight"}) == "layers.7.ffn.shared_expert_gate.weight");
  CHECK(gguf({"blk.7.ffn_up.weight"}, "phi3") == "layers.7.ffn.gate_up.weight");
  CHECK(gguf({"blk.7.ffn_up.weight"}, "llama") == "layers.7.ffn.up.weight");
  CHECK(gguf({"blk.7.ffn_gate.weight", "blk.7.ffn_up.weight"}, "glm4") == "layers.7.ffn.up.weight");
  CHECK(gguf({"blk.7.attn_q.input_scale"}) == "layers.7.attention.q.input_scale");
  CHECK(gguf({"blk.7.ssm_dt.bias"}) == "layers.7.ssm.dt.bias");
  CHECK(gguf({"blk.7.ssm_a"}) == "layers.7.ssm.a");
  CHECK(gguf({"blk.7.indexer.attn_q_b.weight"}) == "layers.7.attention.indexer.attn_q_b.weight");
  CHECK(gguf({"dec.blk.7.cross_attn_o.weight"}) ==
        "decoder.layers.7.cross_attention.output.weight");
  CHECK(gguf({"v.blk.7.ffn_up.weight"}) == "vision.layers.7.ffn.up.weight");
  CHECK(gguf({"mm.2.weight"}) == "projector.2.weight");
  CHECK(gguf({"blk.7.attn_rot_embd.weight"}) == "(ignored)");
  for (const char* name :
       {"blk.x.attn_q.weight", "blk.0.attn_q2.weight", "blk.0.ffn_down.03.weight",
        "blk.0.ffn_down..weight", "attn_q.weight", "w.blk.0.attn_q.weight"}) {
    CAPTURE(name);
    CHECK(gguf({name}) == "(unmapped)");
  }
}

TEST_CASE("layers are sorted by their numbers") {
  std::vector<std::string> names;
  for (int layer = 0; layer < 120; ++layer)
    names.push_back("layers." + std::to_string(layer) + ".x");
  names.insert(names.end(), {"output.weight", "token_embedding.weight"});
  std::vector<std::string> shuffled = names;
  std::mt19937 random(1);
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  std::sort(shuffled.begin(), shuffled.end(), name_less);
  CHECK(shuffled == names);
}

TEST_CASE("numbers that begin alike are compared as a whole") {
  const std::vector<std::string> names = {
      "layers.1.experts.9.up",    "layers.10.experts.2.up",    "layers.10.experts.2.up_bias",
      "layers.10.experts.19.up",  "layers.10.experts.128.up",  "layers.10.experts.129.down",
      "layers.10.experts.129.up", "layers.10.experts.1289.up", "layers.100.experts.1.up"};
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t k = 0; k < names.size(); ++k) {
      CHECK(name_less(names[i], names[k]) == (i < k));
    }
  }
}

TEST_CASE("the order of names is strict and transitive") {
  const std::vector<std::string> names = {"",    "a",     "a0",  "a00",    "a1",   "a01",
                                          "a10", "a9",    "a9b", "b",      "1",    "01",
                                          "10",  "a.1.b", "a.1", "a.12.b", "a.2.b"};
  for (const std::string& a : names) {
    CHECK_FALSE(name_less(a, a));
    for (const std::string& b : names) {
      CHECK((a == b) == (!name_less(a, b) && !name_less(b, a)));
      for (const std::string& c : names) {
        if (name_less(a, b) && name_less(b, c)) CHECK(name_less(a, c));
      }
    }
  }
}
