// Generates text greedily, as an inference engine on the weight layer does.
//
//   forward MODEL LOGITS COUNT TOKEN...
//
// MODEL is a directory, a .safetensors or a .gguf file. The program appends up to COUNT tokens to
// the given ones, until the model ends the text, and prints them. LOGITS is the safetensors file to
// write, with the tensor `logits`: F32 [tokens, vocabulary], for all tokens but the last.
//
// It computes the families of kFamilies: llama, mistral, qwen2, qwen3, gemma 3, mixtral and qwen3
// moe. They work in every format and quantisation scheme that the weight layer decodes: nothing
// here depends on either.
//
// The only kernel of this program multiplies F32. So it decodes a few rows of a weight at a time to
// one buffer that it uses for all weights: no weight is in memory as a whole. An engine with
// kernels for packed types passes them get_tensor() and fuse_weights(), as qkv() does for F32.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <numbers>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "safetensors/safetensors.hpp"
#include "safetensors/weights/weights.hpp"

namespace weights = safetensors::weights;

namespace {

// As config.json ("model_type") or a GGUF file names them. GGUF files call Mixtral a llama.
constexpr std::string_view kFamilies[] = {"llama",       "mistral",   "qwen2",
                                          "qwen3",       "gemma3",    "mixtral",
                                          "gemma3_text", "qwen3_moe", "qwen3moe"};

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error("this program does not support " + what);
}
void refuse_if(bool found, const std::string& what) {
  if (found) refuse(what);
}

/// Activations: one row for each token.
struct Rows {
  Rows(std::size_t count_, std::size_t length_)
      : count(count_), length(length_), values(count_ * length_) {}
  std::span<float> row(std::size_t i) { return std::span(values).subspan(i * length, length); }
  std::span<const float> row(std::size_t i) const {
    return std::span(values).subspan(i * length, length);
  }

  std::size_t count;
  std::size_t length;
  std::vector<float> values;
};

/// The rows of a tensor that are a matrix: all of them, or those of one expert.
struct Matrix {
  std::string name;
  std::size_t row0 = 0;
  std::size_t rows = 0;
};

float dot(std::span<const float> a, std::span<const float> b) {
  return std::transform_reduce(a.begin(), a.end(), b.begin(), 0.0F);
}

/// Computes y[t][column + r] = w[r] . x[t] for the rows r of a matrix.
void multiply(std::span<const float> w, const Rows& x, Rows& y, std::size_t column) {
  for (std::size_t r = 0; r < w.size() / x.length; ++r) {
    for (std::size_t t = 0; t < x.count; ++t) {
      y.row(t)[column + r] = dot(w.subspan(r * x.length, x.length), x.row(t));
    }
  }
}

void add(Rows& x, const Rows& y) {
  std::ranges::transform(x.values, y.values, x.values.begin(), std::plus<>());
}

void softmax(std::span<float> values) {
  const float largest = std::ranges::max(values);
  for (float& value : values) value = std::exp(value - largest);
  const float sum = std::accumulate(values.begin(), values.end(), 0.0F);
  for (float& value : values) value /= sum;
}

float silu(float x) { return x / (1.0F + std::exp(-x)); }

/// GELU, approximated with a tanh.
float gelu_tanh(float x) {
  constexpr float kScale = 0.797884561F;  // sqrt(2 / pi)
  return 0.5F * x * (1.0F + std::tanh(kScale * (x + 0.044715F * x * x * x)));
}

/// Returns a value of the configuration, which a file may leave out.
template <typename T>
T stated(const std::optional<T>& value, const char* field) {
  if (!value) throw std::runtime_error(std::string("the model has no ") + field);
  return *value;
}
std::size_t size_of(const std::optional<std::int64_t>& value, const char* field) {
  if (!value || *value <= 0) throw std::runtime_error(std::string("the model has no ") + field);
  return static_cast<std::size_t>(*value);
}

class Engine {
 public:
  explicit Engine(const char* path)
      : model_(weights::WeightProvider::open(path)),
        dim_(size_of(model_.config().dim, "dim")),
        heads_(size_of(model_.config().n_heads, "n_heads")),
        kv_heads_(size_of(model_.config().n_kv_heads, "n_kv_heads")),
        head_dim_(size_of(model_.config().head_dim, "head_dim")),
        rope_dim_(static_cast<std::size_t>(model_.config().rope_dim.value_or(0))) {
    const weights::ModelConfig& c = model_.config();
    if (rope_dim_ == 0) rope_dim_ = head_dim_;
    const std::string family = c.architecture.value_or("");
    is_gemma_ = family.starts_with("gemma3");
    const std::string activation = c.activation.value_or(is_gemma_ ? "gelu_pytorch_tanh" : "silu");
    activate_ = activation == "silu" ? silu : gelu_tanh;
    // What this program does not compute must not pass unnoticed.
    refuse_if(std::ranges::count(kFamilies, family) == 0, "the architecture '" + family + "'");
    refuse_if(activation != "silu" && activation != "gelu_pytorch_tanh",
              "the activation " + activation);
    if (!model_.unmapped().empty()) refuse("the tensor " + model_.unmapped().front());
    refuse_if(heads_ % kv_heads_ != 0, "heads that are no multiple of kv heads");
    refuse_if(rope_dim_ > head_dim_ || rope_dim_ % 2 != 0, "rotated elements that are no pairs");
    refuse_if(!c.rope_style || *c.rope_style == weights::RopeStyle::none, "no rotary embedding");
    refuse_if(c.v_head_dim && *c.v_head_dim != *c.head_dim, "values of another length than keys");
    refuse_if(c.attn_logit_softcap || c.final_logit_softcap, "soft caps");
    refuse_if(c.embedding_scale || c.residual_scale || c.logit_scale, "scaled activations");
    refuse_if(c.expert_gating.value_or("softmax") != "softmax", "experts chosen without a softmax");
    refuse_if(c.shared_ffn_dim || c.n_shared_experts, "shared experts");
    for (const std::string& warning : model_.warnings()) std::cerr << warning << '\n';
    find_layers();
  }

  /// Returns the logits of tokens that follow those of the calls before.
  Rows logits(std::span<const std::int64_t> tokens) {
    Rows x(tokens.size(), dim_);
    for (std::size_t t = 0; t < tokens.size(); ++t) {  // decodes these rows of the vocabulary only
      model_.dequantize("token_embedding.weight", x.row(t), tokens[t], 1);
    }
    if (is_gemma_) {
      for (float& value : x.values) value *= std::sqrt(static_cast<float>(dim_));
    }
    for (Layer& layer : layers_) {
      const auto block = [&](const char* norm, const char* norm_after, auto&& compute) {
        Rows y = compute(normalized(layer.name + norm, x));
        if (model_.has_tensor(layer.name + norm_after + ".weight")) {
          normalize(layer.name + norm_after, y.values, y.length);
        }
        add(x, y);
      };
      block("attention_norm", "post_attention_norm",
            [&](const Rows& rows) { return attention(layer, rows); });
      block("ffn_norm", "post_ffn_norm", [&](const Rows& rows) {
        const bool has_experts = model_.has_tensor(layer.name + "ffn.router.weight");
        return has_experts ? experts(layer.name + "ffn.", rows)
                           : feed_forward(layer.name + "ffn.", rows);
      });
    }
    position_ += tokens.size();
    // The output tensor, or the embedding if they are tied.
    const std::string_view output = model_.output_name();
    const std::vector<std::int64_t>& shape = model_.info(output).shape;
    return projected(std::string(output.substr(0, output.rfind('.'))), normalized("output_norm", x),
                     size_of(shape.empty() ? 0 : shape.front(), "output"));
  }

  /// Returns whether a token ends the text.
  bool is_end(std::int64_t token) const {
    return std::ranges::count(model_.config().eos_token_ids, token) != 0;
  }

 private:
  struct Layer {
    std::string name;                // "layers.0."
    std::size_t window = 0;          // tokens that it attends to; 0: all
    std::vector<float> frequencies;  // of the rotary embedding: radians a token, for each pair
    std::vector<float> keys{};       // of all tokens so far: [tokens, kv heads, head]
    std::vector<float> values{};
  };

  /// Returns what config.json says; `otherwise` if it does not say, or if there is none.
  bool states(const char* key, bool otherwise) const {
    const weights::Json* config = model_.raw_config();
    const weights::Json* value = config == nullptr ? nullptr : config->find(key);
    const bool* stated = value == nullptr ? nullptr : value->as_bool();
    return stated == nullptr ? otherwise : *stated;
  }

  void find_layers() {
    const weights::ModelConfig& c = model_.config();
    const bool slides = c.sliding_window > 0 && states("use_sliding_window", true);
    // Every n-th layer attends to all tokens. GGUF files of Gemma 3 do not say so.
    const auto pattern =
        static_cast<std::size_t>(c.sliding_window_pattern.value_or(is_gemma_ ? 6 : 0));
    for (std::size_t n = 0; n < size_of(c.n_layers, "n_layers"); ++n) {
      const std::string name = "layers." + std::to_string(n) + ".";
      (void)matrix(name + "attention.q", heads_ * head_dim_, dim_);  // so the sizes are true
      bool is_local = pattern == 0 || (n + 1) % pattern != 0;
      if (!c.layer_kinds.empty()) {
        is_local = c.layer_kinds.at(n) == weights::LayerKind::sliding;
        const bool is_full = c.layer_kinds[n] == weights::LayerKind::full;
        refuse_if(!is_local && !is_full, "layers without attention");
      }
      is_local = is_local && slides;
      layers_.push_back({.name = name,
                         .window = is_local ? static_cast<std::size_t>(c.sliding_window) : 0,
                         .frequencies = frequencies(is_local)});
    }
  }

  /// Returns the angles by which the pairs of a head turn from one token to the next.
  std::vector<float> frequencies(bool is_local) const {
    const weights::ModelConfig& c = model_.config();
    const bool has_own = is_local && (is_gemma_ || c.rope_theta_local);
    const double theta = has_own ? c.rope_theta_local.value_or(10000.0) : c.rope_theta;
    std::vector<double> result(rope_dim_ / 2);
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim_));
    }
    if (c.rope_scaling && !has_own) {
      const weights::RopeScaling& scaling = *c.rope_scaling;
      if (scaling.type != "linear" && scaling.type != "llama3") {
        refuse("rotary embeddings scaled by " + scaling.type);
      }
      for (double& frequency : result) frequency *= scale_of(scaling, frequency);
    }
    if (model_.has_tensor("rope_freqs.weight")) {  // so GGUF files say "llama3"
      std::vector<float> divisors(result.size());
      model_.dequantize("rope_freqs.weight", divisors);
      for (std::size_t i = 0; i < result.size(); ++i) result[i] /= divisors[i];
    }
    return {result.begin(), result.end()};
  }

  /// Returns the factor of a frequency. "llama3" slows down only those whose period is long beside
  /// the texts of the training: below `low` periods in such a text wholly, above `high` not at all.
  static double scale_of(const weights::RopeScaling& scaling, double frequency) {
    const double slow = 1.0 / stated(scaling.factor, "factor of rope_scaling");
    if (scaling.type == "linear") return slow;
    const auto trained = stated(scaling.original_max_position_embeddings, "length of its training");
    const double low = stated(scaling.low_freq_factor, "low_freq_factor");
    const double high = stated(scaling.high_freq_factor, "high_freq_factor");
    const double periods = static_cast<double>(trained) * frequency / (2.0 * std::numbers::pi);
    return std::lerp(slow, 1.0, std::clamp((periods - low) / (high - low), 0.0, 1.0));
  }

  /// Divides each head of `length` elements by its root mean square, and multiplies by the weight.
  void normalize(const std::string& module, std::span<float> values, std::size_t length) {
    const std::string name = module + ".weight";
    std::vector<float> weight(length);
    model_.dequantize(name, weight);  // throws if the tensor has another length
    const auto offset =
        static_cast<float>(stated(model_.norm_weight_offset_of(name), "offset of norms"));
    const auto epsilon = static_cast<float>(stated(model_.config().norm_eps, "norm_eps"));
    for (; !values.empty(); values = values.subspan(length)) {
      const auto head = values.first(length);
      const float mean = dot(head, head) / static_cast<float>(length);
      const float scale = 1.0F / std::sqrt(mean + epsilon);
      for (std::size_t i = 0; i < length; ++i) head[i] *= scale * (weight[i] + offset);
    }
  }
  Rows normalized(const std::string& module, Rows x) {
    normalize(module, x.values, x.length);
    return x;
  }

  /// The layer has checked the tensors; the engine must check that they fit together.
  void check_shape(const std::string& name, const std::vector<std::size_t>& wanted) const {
    const std::vector<std::int64_t>& shape = model_.info(name).shape;
    if (std::ranges::equal(shape, wanted, std::cmp_equal<std::int64_t, std::size_t>)) return;
    std::string text = name + " is not of shape [";
    for (const std::size_t axis : wanted) text += std::to_string(axis) + ", ";
    throw std::runtime_error(text.substr(0, text.size() - 2) + "]");
  }
  Matrix matrix(const std::string& module, std::size_t rows, std::size_t columns) const {
    check_shape(module + ".weight", {rows, columns});
    return {module + ".weight", 0, rows};
  }

  /// Returns the matrix of an expert, which is a tensor of its own or a part of one of all experts.
  Matrix matrix_of(const std::string& ffn, std::size_t expert, const std::string& which,
                   std::size_t rows, std::size_t columns) const {
    const std::string own = ffn + "experts." + std::to_string(expert) + "." + which;
    if (model_.has_tensor(own + ".weight")) return matrix(own, rows, columns);
    const auto count = static_cast<std::size_t>(model_.config().n_experts);
    for (const char* end : {".weight", ""}) {  // as transformers saves it, the name has no ending
      const std::string both = ffn + "experts.gate_up" + end;  // the gate first
      if (which != "down" && model_.has_tensor(both)) {
        check_shape(both, {count, 2 * rows, columns});
        return {both, (2 * expert + (which == "up" ? 1 : 0)) * rows, rows};
      }
      const std::string all = ffn + "experts." + which + end;
      if (!model_.has_tensor(all)) continue;
      check_shape(all, {count, rows, columns});
      return {all, expert * rows, rows};
    }
    throw std::runtime_error("the model has no " + own + ".weight");
  }

  /// Writes x W^T to columns of y.
  void project(const Matrix& w, const Rows& x, Rows& y, std::size_t column = 0) {
    constexpr std::size_t kBufferValues = std::size_t{1} << 20;
    const std::size_t at_once = std::clamp<std::size_t>(kBufferValues / x.length, 1, w.rows);
    decoded_.resize(std::max(decoded_.size(), at_once * x.length));
    for (std::size_t begin = 0; begin < w.rows; begin += at_once) {
      const std::size_t count = std::min(at_once, w.rows - begin);
      const auto some = std::span(decoded_).first(count * x.length);
      model_.dequantize(w.name, some, std::int64_t(w.row0 + begin), std::int64_t(count));
      multiply(some, x, y, column + begin);
    }
  }
  Rows projected(const Matrix& w, const Rows& x) {
    Rows y(x.count, w.rows);
    project(w, x, y);
    return y;
  }
  /// Returns x W^T + b, for the matrix and the bias of a module.
  Rows projected(const std::string& module, const Rows& x, std::size_t rows) {
    Rows y = projected(matrix(module, rows, x.length), x);
    add_bias(module, y, 0, rows);
    return y;
  }
  void add_bias(const std::string& module, Rows& y, std::size_t column, std::size_t length) const {
    if (!model_.has_tensor(module + ".bias")) return;
    std::vector<float> bias(length);
    model_.dequantize(module + ".bias", bias);
    for (std::size_t t = 0; t < y.count; ++t) {
      const auto part = y.row(t).subspan(column, length);
      std::ranges::transform(part, bias, part.begin(), std::plus<>());
    }
  }

  /// Returns the queries, keys and values of all tokens: [tokens, q | k | v].
  Rows qkv(const std::string& prefix, const Rows& x) {
    const std::size_t q = heads_ * head_dim_;
    const std::size_t kv = kv_heads_ * head_dim_;
    const Matrix parts[] = {matrix(prefix + "q", q, x.length), matrix(prefix + "k", kv, x.length),
                            matrix(prefix + "v", kv, x.length)};
    Rows y(x.count, q + 2 * kv);
    const bool fused = std::ranges::all_of(parts, [&](const Matrix& part) {
      return model_.get_dtype(part.name) == weights::code::kF32;
    });
    if (fused) {
      // One buffer, and one product instead of three. The model keeps the buffer for the next call.
      const std::vector<std::string_view> names = {parts[0].name, parts[1].name, parts[2].name};
      const weights::WeightBuffer buffer = model_.fuse_weights(names);
      const auto* values = reinterpret_cast<const float*>(buffer.bytes().data());
      multiply({values, y.length * x.length}, x, y, 0);
    }
    std::size_t column = 0;
    for (const Matrix& part : parts) {
      if (!fused) project(part, x, y, column);
      add_bias(part.name.substr(0, part.name.rfind('.')), y, column, part.rows);
      column += part.rows;
    }
    return y;
  }

  /// Rotates the pairs of a head by angles that grow with the position.
  void rotate(const Layer& layer, std::span<float> head, std::size_t position) const {
    const bool interleaved = model_.config().rope_style == weights::RopeStyle::interleaved;
    for (std::size_t i = 0; i < rope_dim_ / 2; ++i) {
      const float angle = static_cast<float>(position) * layer.frequencies[i];
      float& a = head[interleaved ? 2 * i : i];
      float& b = head[interleaved ? 2 * i + 1 : i + rope_dim_ / 2];
      const float turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
  }

  Rows attention(Layer& layer, const Rows& x) {
    const std::string prefix = layer.name + "attention.";
    const std::size_t q = heads_ * head_dim_;
    const std::size_t kv = kv_heads_ * head_dim_;
    Rows y = qkv(prefix, x);
    for (std::size_t t = 0; t < y.count; ++t) {
      const auto row = y.row(t);
      if (model_.has_tensor(prefix + "q_norm.weight")) {
        normalize(prefix + "q_norm", row.first(q), head_dim_);
        normalize(prefix + "k_norm", row.subspan(q, kv), head_dim_);
      }
      for (std::size_t h = 0; h < heads_ + kv_heads_; ++h) {
        rotate(layer, row.subspan(h * head_dim_, head_dim_), position_ + t);
      }
      layer.keys.insert(layer.keys.end(), row.begin() + std::ptrdiff_t(q),
                        row.end() - std::ptrdiff_t(kv));
      layer.values.insert(layer.values.end(), row.end() - std::ptrdiff_t(kv), row.end());
    }
    // GGUF files of Gemma 3 27B, which has 62 layers, do not say that it scales by another length.
    const std::size_t length = is_gemma_ && layers_.size() == 62 ? dim_ / heads_ : head_dim_;
    const auto scale = static_cast<float>(
        model_.config().query_scale.value_or(1.0 / std::sqrt(static_cast<double>(length))));
    Rows mixed(y.count, q);
    std::vector<float> scores;
    for (std::size_t t = 0; t < y.count; ++t) {
      const std::size_t end =
          position_ + t + 1;  // the tokens from `begin` to `end` are attended to
      const std::size_t begin = layer.window != 0 && layer.window < end ? end - layer.window : 0;
      scores.resize(end - begin);
      for (std::size_t h = 0; h < heads_; ++h) {
        const std::size_t group = h / (heads_ / kv_heads_) * head_dim_;  // its key and value
        const auto query = y.row(t).subspan(h * head_dim_, head_dim_);
        for (std::size_t s = begin; s < end; ++s) {
          const auto key = std::span(layer.keys).subspan(s * kv + group, head_dim_);
          scores[s - begin] = scale * dot(query, key);
        }
        softmax(scores);
        const auto to = mixed.row(t).subspan(h * head_dim_, head_dim_);
        for (std::size_t s = begin; s < end; ++s) {
          const auto value = std::span(layer.values).subspan(s * kv + group, head_dim_);
          for (std::size_t i = 0; i < head_dim_; ++i) to[i] += scores[s - begin] * value[i];
        }
      }
    }
    return projected(prefix + "output", mixed, dim_);
  }

  /// Returns activate(gate) * up.
  Rows gated(Rows gate, const Rows& up) const {
    for (std::size_t i = 0; i < gate.values.size(); ++i) {
      gate.values[i] = activate_(gate.values[i]) * up.values[i];
    }
    return gate;
  }
  Rows feed_forward(const std::string& prefix, const Rows& x) {
    const std::size_t length = size_of(model_.config().ffn_dim, "ffn_dim");
    const Rows gate = projected(prefix + "gate", x, length);
    const Rows up = projected(prefix + "up", x, length);
    return projected(prefix + "down", gated(gate, up), dim_);
  }

  /// Each token goes through the experts that the router rates highest.
  Rows experts(const std::string& prefix, const Rows& x) {
    const weights::ModelConfig& c = model_.config();
    const std::size_t count = size_of(c.n_experts, "n_experts");
    const std::size_t used = std::min(size_of(c.n_experts_used, "n_experts_used"), count);
    const std::size_t length = size_of(c.moe_ffn_dim != 0 ? c.moe_ffn_dim : c.ffn_dim, "ffn_dim");
    Rows shares = projected(prefix + "router", x, count);  // 0 for experts that are not chosen
    for (std::size_t t = 0; t < x.count; ++t) {
      const auto row = shares.row(t);
      softmax(row);
      std::vector<float> sorted(row.begin(), row.end());
      std::ranges::sort(sorted, std::greater<>());
      for (float& share : row) share = share < sorted[used - 1] ? 0.0F : share;
      if (!states("norm_topk_prob", c.architecture != "qwen3_moe")) continue;
      const float sum = std::accumulate(row.begin(), row.end(), 0.0F);
      for (float& share : row) share /= sum;
    }
    Rows y(x.count, dim_);
    for (std::size_t e = 0; e < count; ++e) {
      std::vector<std::size_t> tokens;
      for (std::size_t t = 0; t < x.count; ++t) {
        if (shares.row(t)[e] != 0.0F) tokens.push_back(t);
      }
      if (tokens.empty()) continue;  // so nothing of this expert is read
      Rows some(tokens.size(), dim_);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::ranges::copy(x.row(tokens[i]), some.row(i).begin());
      }
      const Rows gate = projected(matrix_of(prefix, e, "gate", length, dim_), some);
      const Rows up = projected(matrix_of(prefix, e, "up", length, dim_), some);
      const Rows down = projected(matrix_of(prefix, e, "down", dim_, length), gated(gate, up));
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const float share = shares.row(tokens[i])[e];
        for (std::size_t d = 0; d < dim_; ++d) y.row(tokens[i])[d] += share * down.row(i)[d];
      }
    }
    return y;
  }

  weights::WeightProvider model_;
  std::size_t dim_;
  std::size_t heads_;
  std::size_t kv_heads_;
  std::size_t head_dim_;
  std::size_t rope_dim_;
  bool is_gemma_ = false;
  float (*activate_)(float) = silu;
  std::vector<Layer> layers_;
  std::size_t position_ = 0;    // of the next token
  std::vector<float> decoded_;  // rows of one weight at a time
};

std::int64_t number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::runtime_error("'" + std::string(text) + "' is no number");
  }
  return value;
}

void generate(const char* model, const char* path, std::int64_t count,
              std::vector<std::int64_t> next) {
  Engine engine(model);
  std::vector<float> all;
  std::size_t rows = 0;
  std::size_t vocabulary = 0;
  for (std::int64_t i = 0; i < count && !(i > 0 && engine.is_end(next.front())); ++i) {
    const Rows logits = engine.logits(next);  // of the given tokens, then of each new one
    all.insert(all.end(), logits.values.begin(), logits.values.end());
    rows += logits.count;
    vocabulary = logits.length;
    const auto last = logits.row(logits.count - 1);
    next = {std::ranges::max_element(last) - last.begin()};
    std::cout << next.front() << '\n' << std::flush;
  }
  const safetensors::TensorData data[] = {
      safetensors::tensor_data("logits", {rows, vocabulary}, all)};
  safetensors::save_file(data, path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: " << argv[0] << " MODEL LOGITS COUNT TOKEN...\n";
    return 2;
  }
  try {
    std::vector<std::int64_t> tokens;
    for (int i = 4; i < argc; ++i) tokens.push_back(number(argv[i]));
    generate(argv[1], argv[2], number(argv[3]), tokens);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
