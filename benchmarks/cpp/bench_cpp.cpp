// Times opening a file and loading all of its tensors, the counterpart of
// benchmarks/python/bench.py. Prints one line of JSON.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "safetensors/safetensors.hpp"
#include "timing.hpp"

namespace {

using safetensors::Backend;
using safetensors::SafeOpen;
using safetensors::TensorView;

constexpr const char* kUsage = "usage: bench_cpp FILE ITERATIONS [cpu|cuda] [mmap|pread]\n";

int refuse(const char* why) {
  (void)std::fputs(why, stderr);
  (void)std::fputs(kUsage, stderr);
  return 2;
}

void time_loads(const std::filesystem::path& path, std::size_t iterations, Backend backend) {
  bench::Times times;
  std::size_t count = 0;
  std::size_t nbytes = 0;
  for (std::size_t i = 0; i < iterations; ++i) {
    times.run([&] {
      const SafeOpen file(path, {.backend = backend});
      std::vector<TensorView> tensors = file.get_tensors();
      count = tensors.size();
      return tensors;
    });
  }
  for (const TensorView& tensor : SafeOpen(path).get_tensors()) nbytes += tensor.bytes().size();
  std::printf(
      "{\"program\": \"bench_cpp\", \"build\": \"%s\", \"device\": \"cpu\", "
      "\"backend\": \"%s\", \"tensors\": %zu, \"nbytes\": %zu, \"iterations\": %zu, "
      "\"seconds_per_iteration\": %.9f, \"first\": %.9f, \"min\": %.9f, "
      "\"median\": %.9f}\n",
      SAFETENSORS_BUILD_TYPE, backend == Backend::kMmap ? "mmap" : "pread", count, nbytes,
      iterations, times.mean(), times.first(), times.min(), times.median());
}

int run(const std::vector<std::string>& args) {
  if (args.size() < 2 || args.size() > 4) return refuse("");
  const auto iterations = bench::count_from(args[1]);
  if (!iterations) return refuse("bench_cpp: ITERATIONS is a positive number\n");
  const std::string device = args.size() > 2 ? args[2] : "cpu";
  if (device == "cuda") {
    (void)std::fputs("bench_cpp: cuda: this build of the library has no GPU engine\n", stderr);
    return 3;
  }
  if (device != "cpu") return refuse("bench_cpp: the device is cpu or cuda\n");
  const std::string backend = args.size() > 3 ? args[3] : "mmap";
  if (backend != "mmap" && backend != "pread") return refuse("bench_cpp: no such backend\n");
  time_loads(args[0], *iterations, backend == "mmap" ? Backend::kMmap : Backend::kPread);
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "bench_cpp: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
