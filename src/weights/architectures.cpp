#include "weights/architectures.hpp"

#include <algorithm>
#include <span>

namespace safetensors::weights {
namespace {

using Change = HfLayout::Change;

// What the conversion scripts do, named for the effect. kLatent: DeepSeek's latent attention (MLA).
// kDeltaNet: Qwen's gated delta networks. kStateSpace: Mamba and its relatives. kAltup: Gemma 3n.
constexpr HfLayout kSame{Change::none, {}};
constexpr HfLayout kReordered{Change::reordered_rows, {}};
constexpr HfLayout kRaised{Change::raised_norms, {}};
constexpr HfLayout kLatent{Change::other, "kv_b is split, and k_b is transposed"};
constexpr HfLayout kDeltaNet{
    Change::other, "value heads are reordered, norms are one higher, and A is -exp(A_log)"};
constexpr HfLayout kStateSpace{Change::other,
                               "A is -exp(A_log), and tensors of the state space are reshaped"};
constexpr HfLayout kFusedQkv{Change::other, "the rows of the fused q, k and v are regrouped"};
constexpr HfLayout kGroupedRows{Change::other,
                                "rows of q and k are reordered by n_heads / n_kv_heads"};
constexpr HfLayout kGptOss{Change::other,
                           "experts are transposed, and their gate and up rows are separated"};
constexpr HfLayout kTransposed{Change::other, "experts are transposed"};
constexpr HfLayout kAltup{Change::other, "the altup projections are stacked"};
constexpr HfLayout kHeadNorms{Change::other, "the norms of the heads are stacked"};
constexpr HfLayout kUnrecorded{Change::other,
                               "what the conversion to GGUF changes is not recorded"};

// Architectures of GGUF files: name, rule for rotary embedding, change by the conversion.
//
// Sources. Names: LLM_ARCH_NAMES of llama.cpp, as of llama-cpp-python 0.3.36. Rotary embedding:
// llama_model_rope_type there, whose NORM is interleaved and NEOX is half; interleaved_or_none for
// its granite models, which read rope_finetuned. Changes: llama.cpp's conversion scripts, where
// `permute` reorders rows and `+ 1` raises norm weights; kUnrecorded where nobody has compared
// them.
//
// Sorted by name, for the binary search.
constexpr GgufArchitecture kGguf[] = {
    // clang-format off
    {"afmoe", RopeRule::half, kUnrecorded},
    {"apertus", RopeRule::half, kUnrecorded},
    {"arcee", RopeRule::interleaved, kReordered},
    {"arctic", RopeRule::interleaved, kUnrecorded},
    {"arwkv7", RopeRule::none, kUnrecorded},
    {"baichuan", RopeRule::interleaved, kGroupedRows},
    {"bailingmoe", RopeRule::interleaved, kUnrecorded},
    {"bailingmoe2", RopeRule::half, kUnrecorded},
    {"bailingmoe3", RopeRule::interleaved_or_mrope, kUnrecorded},
    {"bert", RopeRule::half, kUnrecorded},
    {"bitnet", RopeRule::half, kUnrecorded},
    {"bloom", RopeRule::none, kUnrecorded},
    {"chameleon", RopeRule::interleaved, kUnrecorded},
    {"chatglm", RopeRule::interleaved, kUnrecorded},
    {"clip", RopeRule::none, kUnrecorded},
    {"codeshell", RopeRule::half, kUnrecorded},
    {"cogvlm", RopeRule::half, kUnrecorded},
    {"cohere2", RopeRule::interleaved, kSame},
    {"cohere2moe", RopeRule::interleaved, kUnrecorded},
    {"command-r", RopeRule::interleaved, kSame},
    {"dbrx", RopeRule::half, kUnrecorded},
    {"deci", RopeRule::interleaved, kReordered},
    {"deepseek", RopeRule::interleaved, kReordered},
    {"deepseek2", RopeRule::interleaved, kLatent},
    {"deepseek2-ocr", RopeRule::interleaved, kLatent},
    {"deepseek32", RopeRule::interleaved, kLatent},
    {"deepseek4", RopeRule::interleaved, kUnrecorded},
    {"dots1", RopeRule::half, kSame},
    {"dots3note", RopeRule::interleaved, kUnrecorded},
    {"dream", RopeRule::half, kSame},
    {"eagle3", RopeRule::interleaved, kUnrecorded},
    {"ernie4_5", RopeRule::interleaved, kSame},
    {"ernie4_5-moe", RopeRule::interleaved, kSame},
    {"eurobert", RopeRule::half, kUnrecorded},
    {"exaone", RopeRule::half, kUnrecorded},
    {"exaone-moe", RopeRule::half, kUnrecorded},
    {"exaone4", RopeRule::half, kSame},
    {"falcon", RopeRule::half, kFusedQkv},
    {"falcon-h1", RopeRule::half, kStateSpace},
    {"gemma", RopeRule::half, kRaised},
    {"gemma-embedding", RopeRule::half, kRaised},
    {"gemma2", RopeRule::half, kRaised},
    {"gemma3", RopeRule::half, kRaised},
    {"gemma3n", RopeRule::half, kAltup},
    {"gemma4", RopeRule::half, kUnrecorded},
    {"gemma4-assistant", RopeRule::half, kUnrecorded},
    {"glm-dsa", RopeRule::interleaved, kLatent},
    {"glm4", RopeRule::interleaved_or_mrope, kSame},
    {"glm4moe", RopeRule::half_or_mrope, kSame},
    {"glm5-next", RopeRule::none, kUnrecorded},
    {"gpt-oss", RopeRule::half, kGptOss},
    {"gpt2", RopeRule::none, kUnrecorded},
    {"gptj", RopeRule::none, kUnrecorded},
    {"gptneox", RopeRule::half, kUnrecorded},
    {"granite", RopeRule::interleaved_or_none, kReordered},
    {"granite_swa", RopeRule::interleaved, kUnrecorded},
    {"granitehybrid", RopeRule::interleaved_or_none, kStateSpace},
    {"granitemoe", RopeRule::interleaved, kReordered},
    {"graniteswitch", RopeRule::interleaved_or_none, kUnrecorded},
    {"grok", RopeRule::half, kUnrecorded},
    {"grovemoe", RopeRule::half, kUnrecorded},
    {"hrm_text", RopeRule::half, kUnrecorded},
    {"hunyuan-dense", RopeRule::half, kSame},
    {"hunyuan-moe", RopeRule::half, kSame},
    {"hunyuan_vl", RopeRule::half_or_mrope, kUnrecorded},
    {"hy_v3", RopeRule::half, kUnrecorded},
    {"hy_v4", RopeRule::interleaved, kUnrecorded},
    {"internlm2", RopeRule::interleaved, kUnrecorded},
    {"jais", RopeRule::none, kUnrecorded},
    {"jais2", RopeRule::half, kUnrecorded},
    {"jamba", RopeRule::none, kStateSpace},
    {"jina-bert-v2", RopeRule::none, kUnrecorded},
    {"jina-bert-v3", RopeRule::half, kUnrecorded},
    {"kimi-k3", RopeRule::none, kUnrecorded},
    {"kimi-linear", RopeRule::none, kLatent},
    {"laguna", RopeRule::half, kUnrecorded},
    {"lfm2", RopeRule::half, kUnrecorded},
    {"lfm2moe", RopeRule::half, kUnrecorded},
    {"llada", RopeRule::interleaved, kReordered},
    {"llada-moe", RopeRule::half, kUnrecorded},
    {"llama", RopeRule::interleaved, kReordered},
    {"llama-embed", RopeRule::interleaved, kReordered},
    {"llama4", RopeRule::interleaved, kTransposed},
    {"maincoder", RopeRule::interleaved, kUnrecorded},
    {"mamba", RopeRule::none, kStateSpace},
    {"mamba2", RopeRule::none, kStateSpace},
    {"maple", RopeRule::half, kUnrecorded},
    {"mellum", RopeRule::half, kUnrecorded},
    {"mimo2", RopeRule::half, kUnrecorded},
    {"minicpm", RopeRule::interleaved, kReordered},
    {"minicpm3", RopeRule::half, kUnrecorded},
    {"minimax-01", RopeRule::half, kUnrecorded},
    {"minimax-m2", RopeRule::half, kSame},
    {"minimax-m3", RopeRule::half, kUnrecorded},
    {"mistral3", RopeRule::interleaved, kReordered},
    {"mistral4", RopeRule::interleaved, kLatent},
    {"modern-bert", RopeRule::half, kUnrecorded},
    {"mpt", RopeRule::none, kUnrecorded},
    {"muse-glimmer", RopeRule::interleaved, kUnrecorded},
    {"nanbeige", RopeRule::interleaved, kUnrecorded},
    {"nemotron", RopeRule::half, kRaised},
    {"nemotron_h", RopeRule::none, kStateSpace},
    {"nemotron_h_moe", RopeRule::none, kStateSpace},
    {"neo-bert", RopeRule::interleaved, kUnrecorded},
    {"nomic-bert", RopeRule::half, kUnrecorded},
    {"nomic-bert-moe", RopeRule::half, kUnrecorded},
    {"olmo", RopeRule::interleaved, kReordered},
    {"olmo2", RopeRule::half, kSame},
    {"olmoe", RopeRule::half, kSame},
    {"openelm", RopeRule::half, kUnrecorded},
    {"orion", RopeRule::half, kUnrecorded},
    {"paddleocr", RopeRule::mrope, kUnrecorded},
    {"pangu-embedded", RopeRule::half, kUnrecorded},
    {"phi2", RopeRule::half, kUnrecorded},
    {"phi3", RopeRule::half, kSame},
    {"phimoe", RopeRule::half, kUnrecorded},
    {"plamo", RopeRule::half, kUnrecorded},
    {"plamo2", RopeRule::half, kStateSpace},
    {"plamo3", RopeRule::half, kUnrecorded},
    {"plm", RopeRule::interleaved, kUnrecorded},
    {"pockettts", RopeRule::interleaved, kUnrecorded},
    {"qwen", RopeRule::half, kUnrecorded},
    {"qwen2", RopeRule::half, kSame},
    {"qwen2moe", RopeRule::half, kSame},
    {"qwen2vl", RopeRule::mrope, kUnrecorded},
    {"qwen3", RopeRule::half, kSame},
    {"qwen35", RopeRule::imrope, kDeltaNet},
    {"qwen35moe", RopeRule::imrope, kDeltaNet},
    {"qwen3moe", RopeRule::half, kSame},
    {"qwen3next", RopeRule::half, kDeltaNet},
    {"qwen3tts", RopeRule::imrope, kUnrecorded},
    {"qwen3vl", RopeRule::imrope, kUnrecorded},
    {"qwen3vlmoe", RopeRule::imrope, kUnrecorded},
    {"qwen4exp", RopeRule::imrope, kUnrecorded},
    {"refact", RopeRule::none, kUnrecorded},
    {"rnd1", RopeRule::half, kUnrecorded},
    {"rwkv6", RopeRule::none, kUnrecorded},
    {"rwkv6qwen2", RopeRule::none, kUnrecorded},
    {"rwkv7", RopeRule::none, kUnrecorded},
    {"seed_oss", RopeRule::half, kSame},
    {"smallthinker", RopeRule::half, kUnrecorded},
    {"smollm3", RopeRule::interleaved, kReordered},
    {"spark2_5", RopeRule::half, kUnrecorded},
    {"stablelm", RopeRule::half, kHeadNorms},
    {"starcoder", RopeRule::interleaved, kUnrecorded},
    {"starcoder2", RopeRule::half, kSame},
    {"step35", RopeRule::half, kUnrecorded},
    {"t5", RopeRule::none, kUnrecorded},
    {"t5encoder", RopeRule::none, kUnrecorded},
    {"talkie", RopeRule::half, kUnrecorded},
    {"wavtokenizer-dec", RopeRule::none, kUnrecorded},
    {"xverse", RopeRule::interleaved, kGroupedRows},
    // clang-format on
};

// Model types of config.json: name, rule for rotary embedding, offset of norm weights.
//
// Sources. Rotary embedding: the rotary functions in the modelling code of transformers 5.23, and
// the `traditional` flag of mlx-lm 0.32.2; interleaved_or_half for types whose code reads
// rope_interleave. Offsets: the forward functions of their norms.
//
// Sorted by name, for the binary search.
constexpr HfModelType kHf[] = {
    // clang-format off
    {"afmoe", RopeRule::half, NormRule::zero},
    {"apertus", RopeRule::half, NormRule::zero},
    {"arcee", RopeRule::half, NormRule::zero},
    {"bitnet", RopeRule::half, NormRule::zero},
    {"bloom", RopeRule::none, NormRule::zero},
    {"cohere", RopeRule::interleaved, NormRule::zero},
    {"cohere2", RopeRule::interleaved, NormRule::zero},
    {"cohere2_moe", RopeRule::interleaved, NormRule::zero},
    {"dbrx", RopeRule::half, NormRule::zero},
    {"deepseek_v2", RopeRule::interleaved, NormRule::zero},
    {"deepseek_v3", RopeRule::interleaved_or_half, NormRule::zero},
    {"deepseek_v32", RopeRule::interleaved, NormRule::zero},
    {"deepseek_v4", RopeRule::interleaved, NormRule::zero},
    {"dots1", RopeRule::half, NormRule::zero},
    {"ernie4_5", RopeRule::interleaved, NormRule::zero},
    {"ernie4_5_moe", RopeRule::interleaved, NormRule::zero},
    {"eurobert", RopeRule::half, NormRule::zero},
    {"exaone4", RopeRule::half, NormRule::zero},
    {"falcon", RopeRule::half, NormRule::zero},
    {"falcon_h1", RopeRule::half, NormRule::zero},
    {"falcon_mamba", RopeRule::none, NormRule::zero},
    {"gemma", RopeRule::half, NormRule::one},
    {"gemma2", RopeRule::half, NormRule::one},
    {"gemma3", RopeRule::half, NormRule::one},
    {"gemma3_text", RopeRule::half, NormRule::one},
    {"gemma3n", RopeRule::half, NormRule::zero},
    {"gemma3n_text", RopeRule::half, NormRule::zero},
    {"gemma4", RopeRule::half, NormRule::zero},
    {"gemma4_text", RopeRule::half, NormRule::zero},
    {"glm", RopeRule::interleaved, NormRule::zero},
    {"glm4", RopeRule::interleaved, NormRule::zero},
    {"glm4_moe", RopeRule::half, NormRule::zero},
    {"glm4_moe_lite", RopeRule::interleaved_or_half, NormRule::zero},
    {"glm4v", RopeRule::interleaved, NormRule::zero},
    {"glm4v_text", RopeRule::interleaved, NormRule::zero},
    {"gpt2", RopeRule::none, NormRule::zero},
    {"gpt_neox", RopeRule::half, NormRule::zero},
    {"gpt_oss", RopeRule::half, NormRule::zero},
    {"gptj", RopeRule::interleaved, NormRule::zero},
    {"granite", RopeRule::half, NormRule::zero},
    {"granitemoe", RopeRule::half, NormRule::zero},
    {"granitemoehybrid", RopeRule::half_or_none, NormRule::zero},
    {"helium", RopeRule::interleaved, NormRule::zero},
    {"hunyuan_v1_dense", RopeRule::half, NormRule::zero},
    {"hunyuan_v1_moe", RopeRule::half, NormRule::zero},
    {"jamba", RopeRule::none, NormRule::zero},
    {"kimi_k2", RopeRule::interleaved_or_half, NormRule::zero},
    {"kimi_linear", RopeRule::none, NormRule::zero},
    {"lfm2", RopeRule::half, NormRule::zero},
    {"lfm2_moe", RopeRule::half, NormRule::zero},
    {"llama", RopeRule::half, NormRule::zero},
    {"llama4", RopeRule::interleaved, NormRule::zero},
    {"llama4_text", RopeRule::interleaved, NormRule::zero},
    {"longcat_flash", RopeRule::interleaved, NormRule::zero},
    {"mamba", RopeRule::none, NormRule::zero},
    {"mamba2", RopeRule::none, NormRule::zero},
    {"mimo_v2_flash", RopeRule::half, NormRule::zero},
    {"minimax", RopeRule::half, NormRule::zero},
    {"minimax_m2", RopeRule::half, NormRule::zero},
    {"minimax_m3_vl", RopeRule::half, NormRule::one},
    {"minimax_m3_vl_text", RopeRule::half, NormRule::one},
    {"ministral", RopeRule::half, NormRule::zero},
    {"ministral3", RopeRule::half, NormRule::zero},
    {"mistral", RopeRule::half, NormRule::zero},
    {"mistral3", RopeRule::half, NormRule::zero},
    {"mistral4", RopeRule::interleaved_or_half, NormRule::zero},
    {"mixtral", RopeRule::half, NormRule::zero},
    {"modernbert", RopeRule::half, NormRule::zero},
    {"mpt", RopeRule::none, NormRule::zero},
    {"nemotron", RopeRule::half, NormRule::one},
    {"nemotron_h", RopeRule::none, NormRule::zero},
    {"nomic_bert", RopeRule::half, NormRule::zero},
    {"olmo", RopeRule::half, NormRule::zero},
    {"olmo2", RopeRule::half, NormRule::zero},
    {"olmo3", RopeRule::half, NormRule::zero},
    {"olmoe", RopeRule::half, NormRule::zero},
    {"phi", RopeRule::half, NormRule::zero},
    {"phi3", RopeRule::half, NormRule::zero},
    {"phimoe", RopeRule::half, NormRule::zero},
    {"qwen2", RopeRule::half, NormRule::zero},
    {"qwen2_5_vl", RopeRule::mrope, NormRule::zero},
    {"qwen2_5_vl_text", RopeRule::mrope, NormRule::zero},
    {"qwen2_moe", RopeRule::half, NormRule::zero},
    {"qwen2_vl", RopeRule::mrope, NormRule::zero},
    {"qwen2_vl_text", RopeRule::mrope, NormRule::zero},
    {"qwen3", RopeRule::half, NormRule::zero},
    {"qwen3_5", RopeRule::imrope, NormRule::one_in_transformers},
    {"qwen3_5_moe", RopeRule::imrope, NormRule::one_in_transformers},
    {"qwen3_5_moe_text", RopeRule::imrope, NormRule::one_in_transformers},
    {"qwen3_5_text", RopeRule::imrope, NormRule::one_in_transformers},
    {"qwen3_moe", RopeRule::half, NormRule::zero},
    {"qwen3_next", RopeRule::half, NormRule::one_in_transformers},
    {"qwen3_vl", RopeRule::imrope, NormRule::zero},
    {"qwen3_vl_moe", RopeRule::imrope, NormRule::zero},
    {"qwen3_vl_moe_text", RopeRule::imrope, NormRule::zero},
    {"qwen3_vl_text", RopeRule::imrope, NormRule::zero},
    {"recurrent_gemma", RopeRule::half, NormRule::one},
    {"seed_oss", RopeRule::half, NormRule::zero},
    {"smollm3", RopeRule::half, NormRule::zero},
    {"stablelm", RopeRule::half, NormRule::zero},
    {"starcoder2", RopeRule::half, NormRule::zero},
    {"step3p5", RopeRule::half, NormRule::one_in_step_names},
    {"step3p7", RopeRule::half, NormRule::one_in_step_names},
    {"t5", RopeRule::none, NormRule::zero},
    {"t5gemma", RopeRule::half, NormRule::one},
    {"t5gemma2", RopeRule::half, NormRule::one},
    {"vaultgemma", RopeRule::half, NormRule::one},
    {"youtu", RopeRule::interleaved_or_half, NormRule::zero},
    // clang-format on
};

static_assert(std::ranges::is_sorted(kGguf, {}, &GgufArchitecture::name));
static_assert(std::ranges::is_sorted(kHf, {}, &HfModelType::name));

template <typename Row>
const Row* find(std::span<const Row> rows, std::string_view name) noexcept {
  const auto found = std::ranges::lower_bound(rows, name, {}, &Row::name);
  return found != rows.end() && found->name == name ? &*found : nullptr;
}

}  // namespace

const GgufArchitecture* find_gguf_architecture(std::string_view name) noexcept {
  return find<GgufArchitecture>(kGguf, name);
}

const HfModelType* find_hf_model_type(std::string_view name) noexcept {
  return find<HfModelType>(kHf, name);
}

}  // namespace safetensors::weights
