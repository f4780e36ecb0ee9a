// Prints the floats of one tensor of GPT-2. read_gpt2.c and read_gpt2_by_hand.c do the same in C,
// with and without the library.
//
//   read_gpt2 FILE [NAME]    default NAME: h.4.ln_1.bias
#include <cstdio>
#include <exception>

#include "safetensors/safetensors.hpp"

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: %s FILE [NAME]\n", argv[0]);
    return 2;
  }
  try {
    const auto file = safetensors::SafeOpen(argv[1]);
    const auto tensor = file.get_tensor(argc == 3 ? argv[2] : "h.4.ln_1.bias");
    for (const float value : tensor.data<float>()) std::printf("%.9g\n", value);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
