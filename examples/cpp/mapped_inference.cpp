// Computes a step of GPT-2 directly on the mapped file: the embedding of a token, then the first
// layer's mlp.c_fc. No weight is copied, and only one row of the embeddings is read. All processes
// that do this share one copy of the file, in the page cache.
//
//   mapped_inference FILE [TOKEN]
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "safetensors/safetensors.hpp"

namespace {

using safetensors::Index;
using safetensors::SafeOpen;
using safetensors::TensorView;

/// y = x W + b, where W is [inputs, outputs].
std::vector<float> linear(std::span<const float> x, const TensorView& weight,
                          const TensorView& bias) {
  // The library has checked each tensor; the program must check that they fit together.
  if (weight.shape.size() != 2 || weight.shape[0] != x.size() ||
      weight.shape[1] != bias.element_count()) {
    throw std::runtime_error("these are not the weights of a GPT-2");
  }
  const std::span<const float> w = weight.data<float>();
  const std::span<const float> b = bias.data<float>();
  std::vector<float> y(b.begin(), b.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
  }
  return y;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s FILE [TOKEN]\n", argv[0]);
    return 2;
  }
  try {
    const SafeOpen file(argv[1]);
    const std::int64_t token = argc == 3 ? std::stoll(argv[2]) : 42;
    const TensorView x = file.get_slice("wte.weight", {Index::at(token)});
    const std::vector<float> y = linear(x.data<float>(), file.get_tensor("h.0.mlp.c_fc.weight"),
                                        file.get_tensor("h.0.mlp.c_fc.bias"));
    for (const float value : y) std::printf("%.6g\n", value);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
