// Lists a file: one line for each tensor, then the metadata.
//
//   list_file FILE
#include <exception>
#include <iostream>

#include "safetensors/safetensors.hpp"

namespace {

void list(const char* path) {
  const safetensors::SafeOpen file(path);
  for (const safetensors::TensorInfo& info : file.header().tensors()) {
    std::cout << info.name << ' ' << safetensors::name(info.dtype) << " [";
    for (std::size_t axis = 0; axis < info.shape.size(); ++axis) {
      std::cout << (axis == 0 ? "" : ", ") << info.shape[axis];
    }
    std::cout << "] " << info.nbytes() << " bytes\n";
  }
  for (const auto& [key, value] : file.metadata()) std::cout << key << " = " << value << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " FILE\n";
    return 2;
  }
  try {
    list(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
