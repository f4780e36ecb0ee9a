// Saves a file and opens it.
#include <safetensors/version.h>

#include <cstdint>
#include <cstdio>
#include <safetensors/safetensors.hpp>
#include <vector>

int main(int, char** argv) {
  const std::vector<float> values = {1, 2};
  const std::vector<std::uint64_t> shape = {2};
  const safetensors::TensorData tensor = safetensors::tensor_data("a", shape, values);
  safetensors::save_file({&tensor, 1}, argv[1]);
  const safetensors::SafeOpen file(argv[1]);
  std::printf("safetensors %s: %zu tensor\n", SAFETENSORS_VERSION, file.keys().size());
  const safetensors::TensorView a = file.get_tensor("a");
  return a.data<float>()[1] == 2 ? 0 : 1;
}
