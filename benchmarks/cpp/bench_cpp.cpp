// Times opening a file and loading all of its tensors, the counterpart of
// benchmarks/python/bench.py. Prints one line of JSON.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#if defined(__linux__)
#include "cuda_memory.hpp"
#endif
#include "safetensors/safetensors.hpp"
#include "timing.hpp"

namespace {

using safetensors::Backend;
using safetensors::SafeOpen;
using safetensors::TensorView;

constexpr const char* kUsage = "usage: bench_cpp FILE ITERATIONS [cpu|cuda] [mmap|pread]\n";

struct Loaded {
  std::size_t count = 0;
  std::size_t nbytes = 0;
};

void print(const bench::Times& times, const char* device, Backend backend, std::size_t iterations,
           const Loaded& loaded) {
  std::printf(
      "{\"program\": \"bench_cpp\", \"build\": \"%s\", \"device\": \"%s\", "
      "\"backend\": \"%s\", \"tensors\": %zu, \"nbytes\": %zu, \"iterations\": %zu, "
      "\"seconds_per_iteration\": %.9f, \"first\": %.9f, \"min\": %.9f, "
      "\"median\": %.9f}\n",
      SAFETENSORS_BUILD_TYPE, device, backend == Backend::kMmap ? "mmap" : "pread", loaded.count,
      loaded.nbytes, iterations, times.mean(), times.first(), times.min(), times.median());
}

void time_loads(const std::filesystem::path& path, std::size_t iterations, Backend backend) {
  bench::Times times;
  Loaded loaded;
  for (std::size_t i = 0; i < iterations; ++i) {
    times.run([&] {
      const SafeOpen file(path, {.backend = backend});
      std::vector<TensorView> tensors = file.get_tensors();
      loaded.count = tensors.size();
      return tensors;
    });
  }
  for (const TensorView& tensor : SafeOpen(path).get_tensors()) {
    loaded.nbytes += tensor.bytes().size();
  }
  print(times, "cpu", backend, iterations, loaded);
}

#if defined(__linux__)
/// To memory that is there before, as an engine's is.
void time_device_loads(const std::filesystem::path& path, std::size_t iterations, Backend backend) {
  constexpr std::uint64_t kAlignment = 512;
  const auto device = safetensors::Device::cuda(0);
  Loaded loaded;
  std::uint64_t room = 0;
  {
    const SafeOpen file(path);
    for (const safetensors::TensorInfo& info : file.header().tensors()) {
      room += (info.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
      loaded.nbytes += static_cast<std::size_t>(info.nbytes());
    }
    loaded.count = file.header().size();
  }
  const bench::CudaMemory memory(static_cast<std::size_t>(room));
  bench::Times times;
  for (std::size_t i = 0; i < iterations; ++i) {
    times.run([&] {
      const SafeOpen file(path, {.backend = backend, .is_for_device = true});
      std::vector<safetensors::LoadTensor> tensors;
      std::uint64_t to = memory.address();
      for (const safetensors::TensorInfo& info : file.header().tensors()) {
        tensors.push_back(
            {.name = info.name, .offset = file.position(info), .nbytes = info.nbytes(), .to = to});
        to += (info.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
      }
      safetensors::Load load(device, {file.source()});
      load.add(tensors);
      load.finish();
      load.wait();
      return load.done_nbytes();
    });
  }
  print(times, "cuda", backend, iterations, loaded);
}
#endif

void run(const std::vector<std::string>& args) {
  if (args.size() < 2 || args.size() > 4) throw bench::BadArguments();
  const auto iterations = bench::count_from(args[1]);
  if (!iterations) throw bench::BadArguments("ITERATIONS is a positive number");
  const std::string device = args.size() > 2 ? args[2] : "cpu";
  if (device != "cpu" && device != "cuda") {
    throw bench::BadArguments("the device is cpu or cuda");
  }
  const std::string backend = args.size() > 3 ? args[3] : "mmap";
  if (backend != "mmap" && backend != "pread") throw bench::BadArguments("no such backend");
  const Backend by = backend == "mmap" ? Backend::kMmap : Backend::kPread;
  if (device == "cpu") {
    time_loads(args[0], *iterations, by);
    return;
  }
#if defined(__linux__)
  time_device_loads(args[0], *iterations, by);
#else
  throw bench::BadArguments("cuda: for Linux only");
#endif
}

}  // namespace

int main(int argc, char** argv) { return bench::run_program(argc, argv, kUsage, run); }
