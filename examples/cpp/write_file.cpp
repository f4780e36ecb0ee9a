// Writes a file with the names and shapes of GPT-2 and made-up values. WIDTH is 768 in the real
// model; the default is smaller. The file equals that of write_file.c byte for byte.
//
//   write_file FILE [WIDTH]
#include <cstdint>
#include <deque>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "safetensors/safetensors.hpp"

namespace {

struct Tensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  std::vector<float> values;
};

class Model {
 public:
  explicit Model(std::uint64_t width) {
    constexpr int kLayers = 12;
    add("wte.weight", {50, width});
    add("wpe.weight", {16, width});
    for (int layer = 0; layer < kLayers; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      add(h + "ln_1.weight", {width});
      add(h + "ln_1.bias", {width});
      add(h + "attn.c_attn.weight", {width, 3 * width});
      add(h + "attn.c_attn.bias", {3 * width});
      add(h + "attn.c_proj.weight", {width, width});
      add(h + "attn.c_proj.bias", {width});
      add(h + "ln_2.weight", {width});
      add(h + "ln_2.bias", {width});
      add(h + "mlp.c_fc.weight", {width, 4 * width});
      add(h + "mlp.c_fc.bias", {4 * width});
      add(h + "mlp.c_proj.weight", {4 * width, width});
      add(h + "mlp.c_proj.bias", {width});
    }
    add("ln_f.weight", {width});
    add("ln_f.bias", {width});
  }

  void save(const char* path) const {
    // TensorData holds views of these tensors, which must outlive the call.
    std::vector<safetensors::TensorData> data;
    for (const Tensor& tensor : tensors_) {
      data.push_back(safetensors::tensor_data(tensor.name, tensor.shape, tensor.values));
    }
    const safetensors::Metadata metadata = {{"format", "pt"}};
    safetensors::save_file(data, path, &metadata);
  }

 private:
  void add(std::string name, std::vector<std::uint64_t> shape) {
    std::size_t elements = 1;
    for (const std::uint64_t size : shape) elements *= static_cast<std::size_t>(size);
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      const auto step = static_cast<int>((i * 7 + tensors_.size() * 13) % 101);
      values[i] = static_cast<float>(step - 50) / 64.0F;
    }
    tensors_.push_back({std::move(name), std::move(shape), std::move(values)});
  }

  std::deque<Tensor> tensors_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::uint64_t width = argc == 3 ? std::stoull(argv[2]) : 8;
    if (argc < 2 || argc > 3 || width < 1 || width > 4096) {
      std::cerr << "usage: " << argv[0] << " FILE [WIDTH]\n";
      return 2;
    }
    Model(width).save(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
