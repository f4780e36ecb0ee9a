// Loads all tensors of a model into memory of the program, and adds up the bytes of each while the
// others are still read. A program for a GPU takes the memory from its driver, and loads to
// Device::cuda().
//
//   load_model MODEL
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <span>
#include <vector>

#include "safetensors/safetensors.hpp"

namespace {

void load(const char* path) {
  const safetensors::Model model =
      safetensors::open_model(path, {.open = {.is_for_device = true}, .opens_all = true});
  std::vector<std::vector<std::byte>> memory(model.size());
  std::vector<safetensors::LoadTensor> tensors;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const safetensors::ModelTensor tensor = model.tensor(i);
    memory[i].resize(static_cast<std::size_t>(tensor.info->nbytes()));
    tensors.push_back(model.to_load(tensor, reinterpret_cast<std::uintptr_t>(memory[i].data())));
  }
  safetensors::Load load(safetensors::Device(), model.sources());
  load.add(tensors);
  load.finish();
  std::uint64_t nbytes = 0;
  std::uint64_t sum = 0;
  while (const auto ready = load.next_ready()) {
    for (const std::byte each : memory[*ready]) sum += static_cast<std::uint64_t>(each);
    nbytes += memory[*ready].size();
  }
  std::cout << model.size() << " tensors, " << nbytes << " bytes, sum " << sum << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: " << argv[0] << " MODEL\n";
    return 2;
  }
  try {
    load(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
