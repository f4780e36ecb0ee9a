// Shows a model as an inference engine sees it: its configuration, and for each tensor its
// canonical name, type, shape and first decoded value.
//
//   weights MODEL    a directory, a .safetensors or a .gguf file
#include "safetensors/weights/weights.hpp"

#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

namespace weights = safetensors::weights;

namespace {

void show(const weights::WeightProvider& model, std::string_view name) {
  const weights::WeightInfo& info = model.info(name);
  std::cout << info.name << ' ' << info.type_name << " [";
  for (std::size_t axis = 0; axis < info.shape.size(); ++axis) {
    std::cout << (axis == 0 ? "" : ", ") << info.shape[axis];
  }
  std::cout << ']';
  // Decodes only the first row.
  std::vector<float> row(info.shape.empty() ? 1 : static_cast<std::size_t>(info.shape.back()));
  model.dequantize(name, row, 0, 1);
  if (!row.empty()) std::cout << ' ' << row.front();
  std::cout << '\n';
}

void show(const char* path) {
  const auto model = weights::WeightProvider::open(path);
  const weights::ModelConfig& config = model.config();
  std::cout << config.architecture.value_or("unknown architecture") << ", "
            << config.n_layers.value_or(0) << " layers\n";
  for (const weights::WeightInfo& info : model.tensors()) show(model, info.name);
  for (const std::string& name : model.unmapped()) show(model, name);
  for (const std::string& warning : model.warnings()) std::cerr << warning << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " MODEL\n";
    return 2;
  }
  try {
    show(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
