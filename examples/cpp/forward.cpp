// Runs a llama-like model on a text of tokens, as an inference engine on the weight layer does.
//
//   forward MODEL LOGITS TOKEN...
//
// MODEL is a directory, a .safetensors or a .gguf file. LOGITS is the safetensors file to write,
// with the tensor `logits`: F32 [tokens, vocabulary]. Models of the families llama, mistral, qwen2,
// qwen3 and their like work, in every format and quantisation scheme that the weight layer decodes:
// nothing here depends on either.
//
// The only kernel of this program multiplies F32. So it decodes a few rows of a weight at a time to
// one buffer that it uses for all weights: no weight is in memory as a whole. An engine with
// kernels for packed types passes them get_tensor() and fuse_weights(), as qkv() does for F32.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/safetensors.hpp"
#include "safetensors/weights/weights.hpp"

namespace weights = safetensors::weights;

namespace {

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

/// Computes y[t][column + r] = w[r] . x[t] for the rows r of a matrix.
void multiply(std::span<const float> w, const Rows& x, Rows& y, std::size_t column) {
  for (std::size_t r = 0; r < w.size() / x.length; ++r) {
    const auto row = w.subspan(r * x.length, x.length);
    for (std::size_t t = 0; t < x.count; ++t) {
      y.row(t)[column + r] = std::transform_reduce(row.begin(), row.end(), x.row(t).begin(), 0.0F);
    }
  }
}

void add(Rows& x, const Rows& y) {
  std::ranges::transform(x.values, y.values, x.values.begin(), std::plus<>());
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
    // What this program does not compute must not pass unnoticed.
    refuse(heads_ % kv_heads_ != 0, "heads that are no multiple of kv heads");
    refuse(rope_dim_ > head_dim_ || rope_dim_ % 2 != 0, "rotated elements that are no pairs");
    refuse(!c.rope_style || *c.rope_style == weights::RopeStyle::none, "no rotary embedding");
    refuse(c.rope_scaling.has_value(), "scaled rotary embedding");
    refuse(c.v_head_dim && *c.v_head_dim != *c.head_dim, "values of another length than keys");
    refuse(c.activation.value_or("silu") != "silu", "another activation than silu");
    refuse(c.attn_logit_softcap || c.final_logit_softcap, "soft caps");
    refuse(c.embedding_scale || c.residual_scale || c.logit_scale, "scaled activations");
    for (const std::string& warning : model_.warnings()) std::cerr << warning << '\n';
  }

  Rows logits(std::span<const std::int64_t> tokens) {
    const std::int64_t window = model_.config().sliding_window;
    refuse(window != 0 && std::ssize(tokens) > window, "a text beyond the sliding window");
    Rows x(tokens.size(), dim_);
    for (std::size_t t = 0; t < tokens.size(); ++t) {  // decodes these rows of the vocabulary only
      model_.dequantize("token_embedding.weight", x.row(t), tokens[t], 1);
    }
    const std::size_t layers = size_of(model_.config().n_layers, "n_layers");
    for (std::size_t n = 0; n < layers; ++n) {
      const std::string layer = "layers." + std::to_string(n) + ".";
      add(x, attention(layer + "attention.", normalized(layer + "attention_norm", x)));
      add(x, feed_forward(layer + "ffn.", normalized(layer + "ffn_norm", x)));
    }
    // The output tensor, or the embedding if they are tied.
    const std::string_view output = model_.output_name();
    const std::vector<std::int64_t>& shape = model_.info(output).shape;
    return projected(std::string(output.substr(0, output.rfind('.'))), normalized("output_norm", x),
                     size_of(shape.empty() ? 0 : shape.front(), "output"));
  }

 private:
  static void refuse(bool found, const std::string& what) {
    if (found) throw std::runtime_error("this program does not support " + what);
  }

  /// Divides each head of `length` elements by its root mean square, and multiplies by the weight.
  void normalize(const std::string& module, std::span<float> values, std::size_t length) {
    const std::string name = module + ".weight";
    std::vector<float> weight(length);
    model_.dequantize(name, weight);  // throws if the tensor has another length
    const auto offset = static_cast<float>(model_.norm_weight_offset_of(name).value());
    const auto epsilon = static_cast<float>(model_.config().norm_eps.value());
    for (; !values.empty(); values = values.subspan(length)) {
      const auto head = values.first(length);
      const float squares = std::inner_product(head.begin(), head.end(), head.begin(), 0.0F);
      const float scale = 1.0F / std::sqrt(squares / static_cast<float>(length) + epsilon);
      for (std::size_t i = 0; i < length; ++i) head[i] *= scale * (weight[i] + offset);
    }
  }
  Rows normalized(const std::string& module, Rows x) {
    normalize(module, x.values, x.length);
    return x;
  }

  /// The layer has checked the tensors; the engine must check that they fit together.
  void check_shape(const std::string& name, std::size_t rows, std::size_t columns) const {
    if (model_.info(name).shape != std::vector{std::int64_t(rows), std::int64_t(columns)}) {
      throw std::runtime_error(name + " is not of " + std::to_string(rows) + " rows of " +
                               std::to_string(columns) + " values");
    }
  }

  /// Writes x W^T + b to columns of y, for the matrix and the bias of a module.
  void project(const std::string& module, const Rows& x, Rows& y, std::size_t column,
               std::size_t rows) {
    const std::string name = module + ".weight";
    check_shape(name, rows, x.length);
    constexpr std::size_t kBufferValues = std::size_t{1} << 20;
    const std::size_t at_once = std::clamp<std::size_t>(kBufferValues / x.length, 1, rows);
    decoded_.resize(std::max(decoded_.size(), at_once * x.length));
    for (std::size_t begin = 0; begin < rows; begin += at_once) {
      const std::size_t count = std::min(at_once, rows - begin);
      const auto some = std::span(decoded_).first(count * x.length);
      model_.dequantize(name, some, std::int64_t(begin), std::int64_t(count));
      multiply(some, x, y, column + begin);
    }
    add_bias(module, y, column, rows);
  }
  Rows projected(const std::string& module, const Rows& x, std::size_t rows) {
    Rows y(x.count, rows);
    project(module, x, y, 0, rows);
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
  Rows qkv(const std::string& attention, const Rows& x) {
    const std::string modules[] = {attention + "q", attention + "k", attention + "v"};
    const std::string names[] = {modules[0] + ".weight", modules[1] + ".weight",
                                 modules[2] + ".weight"};
    const std::size_t sizes[] = {heads_ * head_dim_, kv_heads_ * head_dim_, kv_heads_ * head_dim_};
    Rows y(x.count, sizes[0] + sizes[1] + sizes[2]);
    const bool fused = std::ranges::all_of(names, [&](const std::string& name) {
      return model_.get_dtype(name) == weights::code::kF32;
    });
    if (fused) {
      // One buffer, and one product instead of three. The model keeps the buffer for the next call.
      for (std::size_t part = 0; part < 3; ++part) check_shape(names[part], sizes[part], x.length);
      const weights::WeightBuffer buffer =
          model_.fuse_weights(std::vector<std::string_view>(std::begin(names), std::end(names)));
      const auto* values = reinterpret_cast<const float*>(buffer.bytes().data());
      multiply({values, y.length * x.length}, x, y, 0);
    }
    for (std::size_t part = 0, column = 0; part < 3; column += sizes[part++]) {
      if (fused)
        add_bias(modules[part], y, column, sizes[part]);
      else
        project(modules[part], x, y, column, sizes[part]);
    }
    return y;
  }

  /// Rotates the pairs of a head by angles that grow with the position.
  void rotate(std::span<float> head, std::size_t position) const {
    const bool interleaved = model_.config().rope_style == weights::RopeStyle::interleaved;
    for (std::size_t i = 0; i < rope_dim_ / 2; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(rope_dim_);
      const double angle =
          static_cast<double>(position) * std::pow(model_.config().rope_theta, -exponent);
      const auto cosine = static_cast<float>(std::cos(angle));
      const auto sine = static_cast<float>(std::sin(angle));
      float& a = head[interleaved ? 2 * i : i];
      float& b = head[interleaved ? 2 * i + 1 : i + rope_dim_ / 2];
      const float turned = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = turned;
    }
  }

  Rows attention(const std::string& prefix, const Rows& x) {
    Rows y = qkv(prefix, x);
    const std::size_t keys = heads_ * head_dim_;  // columns of y where they begin
    const std::size_t values = keys + kv_heads_ * head_dim_;
    for (std::size_t t = 0; t < y.count; ++t) {
      const auto queries = y.row(t).first(keys);
      const auto keys_of = y.row(t).subspan(keys, values - keys);
      if (model_.has_tensor(prefix + "q_norm.weight")) {
        normalize(prefix + "q_norm", queries, head_dim_);
        normalize(prefix + "k_norm", keys_of, head_dim_);
      }
      for (std::size_t h = 0; h < heads_ + kv_heads_; ++h) {
        rotate(y.row(t).subspan(h * head_dim_, head_dim_), t);
      }
    }
    const auto scale = static_cast<float>(
        model_.config().query_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim_))));
    Rows mixed(y.count, keys);
    std::vector<float> scores(y.count);
    for (std::size_t h = 0; h < heads_; ++h) {
      const std::size_t group = h / (heads_ / kv_heads_) * head_dim_;  // its key and value
      for (std::size_t t = 0; t < y.count; ++t) {
        const auto query = y.row(t).subspan(h * head_dim_, head_dim_);
        for (std::size_t s = 0; s <= t; ++s) {
          const auto key = y.row(s).subspan(keys + group, head_dim_);
          scores[s] = scale * std::inner_product(query.begin(), query.end(), key.begin(), 0.0F);
        }
        const auto seen = std::span(scores).first(t + 1);
        const float largest = std::ranges::max(seen);
        for (float& score : seen) score = std::exp(score - largest);
        const float sum = std::accumulate(seen.begin(), seen.end(), 0.0F);
        const auto to = mixed.row(t).subspan(h * head_dim_, head_dim_);
        for (std::size_t s = 0; s <= t; ++s) {
          const auto value = y.row(s).subspan(values + group, head_dim_);
          for (std::size_t i = 0; i < head_dim_; ++i) to[i] += scores[s] / sum * value[i];
        }
      }
    }
    return projected(prefix + "output", mixed, dim_);
  }

  Rows feed_forward(const std::string& prefix, const Rows& x) {
    const std::size_t length = size_of(model_.config().ffn_dim, "ffn_dim");
    Rows gate = projected(prefix + "gate", x, length);
    const Rows up = projected(prefix + "up", x, length);
    for (std::size_t i = 0; i < gate.values.size(); ++i) {
      const float g = gate.values[i];
      gate.values[i] = g / (1.0F + std::exp(-g)) * up.values[i];
    }
    return projected(prefix + "down", gate, dim_);
  }

  weights::WeightProvider model_;
  std::size_t dim_;
  std::size_t heads_;
  std::size_t kv_heads_;
  std::size_t head_dim_;
  std::size_t rope_dim_;
  std::vector<float> decoded_;  // rows of one weight at a time
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: " << argv[0] << " MODEL LOGITS TOKEN...\n";
    return 2;
  }
  try {
    std::vector<std::int64_t> tokens;
    for (int i = 3; i < argc; ++i) tokens.push_back(std::stoll(argv[i]));
    const Rows logits = Engine(argv[1]).logits(tokens);
    const std::vector<std::uint64_t> shape = {logits.count, logits.length};
    const safetensors::TensorData data[] = {
        safetensors::tensor_data("logits", shape, logits.values)};
    safetensors::save_file(data, argv[2]);
    const auto last = logits.row(logits.count - 1);
    std::cout << "the most likely next token is " << std::ranges::max_element(last) - last.begin()
              << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
