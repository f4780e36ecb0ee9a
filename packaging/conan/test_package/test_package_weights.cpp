// Opens the file that test_package wrote as a model.
#include <cstdio>
#include <safetensors/weights/weights.hpp>

int main(int, char** argv) {
  const auto model = safetensors::weights::WeightProvider::open(argv[1]);
  std::printf("weights: %zu tensor\n", model.unmapped().size());
  return model.unmapped().size() == 1 ? 0 : 1;
}
