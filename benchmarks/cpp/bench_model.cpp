// Times opening a model of many files, which it makes first, beside opening each of these files.
// Prints one line of JSON.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "safetensors/safetensors.hpp"
#include "timing.hpp"

namespace {

namespace fs = std::filesystem;
using safetensors::Model;
using safetensors::SafeOpen;

constexpr const char* kUsage = "usage: bench_model FOLDER [FILES] [TENSORS] [ITERATIONS]\n";

/// Returns names in their order, as most indexes have them.
std::string name_of_tensor(std::size_t number) {
  char name[64];
  (void)std::snprintf(name, sizeof name, "model.layers.%04zu.mlp.experts.%03zu.gate_proj.weight",
                      number / 1000, number % 1000);
  return name;
}

std::string name_of_file(std::size_t number, std::size_t total) {
  char name[64];
  (void)std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number + 1, total);
  return name;
}

/// Writes a model of empty tensors. Returns the paths of its files.
std::vector<fs::path> make_model(const fs::path& folder, std::size_t files, std::size_t tensors) {
  fs::create_directories(folder);
  const std::vector<std::uint64_t> shape = {0, 4096};
  std::ofstream index(folder / "model.safetensors.index.json");
  index << R"({"weight_map": {)";
  std::vector<fs::path> paths;
  for (std::size_t file = 0, next = 0; file < files; ++file) {
    std::vector<std::string> names;
    for (const std::size_t end = tensors * (file + 1) / files; next < end; ++next) {
      names.push_back(name_of_tensor(next));
    }
    std::vector<safetensors::TensorData> data;
    for (const std::string& name : names) {
      data.push_back({name, shape, {}, safetensors::Dtype::kBF16});
      index << (file == 0 && data.size() == 1 ? "\n  \"" : ",\n  \"") << name << "\": \""
            << name_of_file(file, files) << '"';
    }
    paths.push_back(folder / name_of_file(file, files));
    safetensors::save_file(data, paths.back());
  }
  index << "\n}}\n";
  return paths;
}

void time_model(const fs::path& folder, std::size_t files, std::size_t tensors,
                std::size_t iterations) {
  const std::vector<fs::path> paths = make_model(folder, files, tensors);
  const fs::path index = folder / "model.safetensors.index.json";
  const std::string some = name_of_tensor(tensors / 2);
  bench::Times each, all, one, alone;
  for (std::size_t i = 0; i < iterations; ++i) {
    each.run([&] {
      std::vector<SafeOpen> opened;
      for (const fs::path& path : paths) opened.emplace_back(path);
      return opened;
    });
    all.run([&] { return safetensors::open_model(index, {.opens_all = true}); });
    one.run([&] {
      Model model = safetensors::open_model(index);
      (void)model.at(some);
      return model;
    });
  }
  fs::remove(index);
  for (std::size_t i = 0; i < iterations; ++i) {
    alone.run([&] { return safetensors::open_model(folder); });
  }
  std::printf(
      "{\"program\": \"bench_model\", \"build\": \"%s\", \"files\": %zu, \"tensors\": %zu, "
      "\"iterations\": %zu, \"files_alone\": %.6f, \"model\": %.6f, \"ratio\": %.3f, "
      "\"one_tensor\": %.6f, \"without_index\": %.6f, \"ratio_without_index\": %.3f}\n",
      SAFETENSORS_BUILD_TYPE, files, tensors, iterations, each.min(), all.min(),
      all.min() / each.min(), one.min(), alone.min(), alone.min() / each.min());
}

void run(const std::vector<std::string>& args) {
  const auto [files, tensors, iterations] = bench::counts_after_first<3>(args, {100, 100'000, 20});
  const fs::path folder = args[0];
  if (fs::exists(folder)) throw std::runtime_error(folder.string() + " exists");
  time_model(folder, files, tensors, iterations);
  fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) { return bench::run_program(argc, argv, kUsage, run); }
