// Loads from the page cache over a modelled link of half the machine's read rate. A loader that
// keeps up keeps the link busy. The link is the fake CUDA driver's timed mode: copies take time,
// and copy nothing. Prints a table in Markdown; see docs/figures.md, "A modelled link".
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fake_cuda.hpp"
#include "link_loaders.hpp"
#include "safetensors/detail/cuda_driver.hpp"
#include "safetensors/safetensors.hpp"
#include "timing.hpp"

namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage = "usage: bench_link FOLDER [KILOBYTES] [REPEATS]\n";
constexpr std::size_t kMiB = std::size_t{1} << 20;
/// Of a small copy from pinned memory by PCIe.
constexpr long kLatencyNs = 2000;
constexpr double kWanted = 0.95;
constexpr std::size_t kFew = 16;
constexpr std::size_t kMany = 10'000;

struct Loader {
  const char* name;
  bench::LinkLoader load;
};

constexpr Loader kLoaders[] = {
    {"this package", bench::load_by_engine},
    {"pageable, tensor by tensor", bench::load_pageable},
    {"pinned, tensor by tensor", bench::load_pinned},
    {"pinned, 8 threads, 16 MiB", bench::load_prefetched},
};

/// What was measured of one loader: one value for each repeat.
struct Row {
  std::string tensors;
  int devices = 1;
  Loader loader{};
  std::vector<double> seconds{};
  std::vector<double> busy{};     ///< of the whole load
  std::vector<double> lead{};     ///< seconds before the first copy, of the last device
  std::vector<double> between{};  ///< busy between the first and the last copy
  std::vector<double> used{};     ///< bytes, of those that the link could copy in this time
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void make_file(const fs::path& path, std::size_t count, std::size_t nbytes) {
  const std::vector<std::byte> bytes(nbytes / count, std::byte{7});
  const std::uint64_t shape[] = {bytes.size()};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back("model.layers." + std::to_string(i) + ".weight");
  }
  std::vector<safetensors::TensorData> tensors;
  for (const std::string& name : names)
    tensors.push_back({.name = name, .shape = shape, .bytes = bytes});
  // Flushed, so that the kernel does not write the pages while loads are timed.
  safetensors::save_file(tensors, path, nullptr, {.fsync = true});
}

/// Returns the bytes a second at which as many threads read the file as a load has readers, each
/// into two slots of 4 MiB in turn.
double read_rate(const fs::path& path, unsigned threads) {
  constexpr std::size_t kSlot = 4 * kMiB;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("cannot open " + path.string());
  std::vector<std::vector<std::byte>> slots(threads, std::vector<std::byte>(2 * kSlot));
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::atomic<std::uint64_t> nbytes{0};
    std::atomic<std::uint64_t> next{0};
    bench::Times times;
    times.run([&] {
      std::vector<std::thread> readers;
      for (unsigned i = 0; i < threads; ++i) {
        readers.emplace_back([&, i] {
          for (std::size_t slot = 0;; slot = kSlot - slot) {
            const auto at = static_cast<off_t>(next++ * kSlot);
            const ssize_t got = ::pread(file, slots[i].data() + slot, kSlot, at);
            if (got <= 0) return;
            nbytes += static_cast<std::uint64_t>(got);
          }
        });
      }
      for (std::thread& reader : readers) reader.join();
      return 0;
    });
    best = std::max(best, static_cast<double>(nbytes) / times.min());
  }
  (void)::close(file);
  return best;
}

long now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<long>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

/// Loads the file over links that have this rate together, and adds what was measured to the row.
void measure(Row& row, const bench::LinkFile& file, double rate, std::uint64_t nbytes) {
  fakecuda_clear();
  fakecuda_timed(rate / file.devices, kLatencyNs);
  const long begin = now();
  row.loader.load(file);
  const auto elapsed = static_cast<double>(now() - begin);
  double busy = 0;
  double between = 0;
  long first = 0;
  std::uint64_t copied = 0;
  for (int device = 0; device < file.devices; ++device) {
    fake::EngineTimes times{};
    fakecuda_engine_times(device, fake::kToDevice, &times);
    const auto busy_ns = static_cast<double>(times.busy_ns);
    busy += busy_ns / elapsed / file.devices;
    between += busy_ns / static_cast<double>(times.end_ns - times.begin_ns) / file.devices;
    first = std::max(first, times.begin_ns);
    copied += static_cast<std::uint64_t>(times.nbytes);
  }
  if (copied != nbytes) throw std::runtime_error(std::string(row.loader.name) + " lost bytes");
  row.seconds.push_back(elapsed / 1e9);
  row.busy.push_back(busy);
  row.between.push_back(between);
  row.lead.push_back(static_cast<double>(first - begin) / 1e9);
  row.used.push_back(static_cast<double>(nbytes) / (elapsed / 1e9) / rate);
}

void print(const std::vector<Row>& rows) {
  std::puts(
      "| tensors | devices | loader | time | busy | lowest | starts after | then busy | rate |");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  for (const Row& row : rows) {
    const bool is_missed = row.loader.load == bench::load_by_engine && median(row.busy) < kWanted;
    std::printf("| %s | %d | %s | %.0f ms | %.1f %%%s | %.1f %% | %.1f ms | %.1f %% | %.1f %% |\n",
                row.tensors.c_str(), row.devices, row.loader.name, median(row.seconds) * 1e3,
                median(row.busy) * 100, is_missed ? " **missed**" : "",
                *std::ranges::min_element(row.busy) * 100, median(row.lead) * 1e3,
                median(row.between) * 100, median(row.used) * 100);
  }
}

/// The files, which are removed again.
class Files {
 public:
  struct File {
    std::string tensors;
    fs::path path;
  };

  Files(const fs::path& folder, std::size_t nbytes) {
    for (const std::size_t count : {kFew, kMany}) {
      all.push_back({std::to_string(count) + " x " + std::to_string(nbytes / count / 1024) + " KiB",
                     folder / ("link-" + std::to_string(count) + ".safetensors")});
      make_file(all.back().path, count, nbytes);
    }
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() {
    for (const File& file : all) {
      std::error_code ignored;
      fs::remove(file.path, ignored);
    }
  }

  std::vector<File> all;
};

void run(const std::vector<std::string>& args) {
  const auto [kilobytes, repeats] = bench::counts_after_first<2>(args, {128, 9});
  safetensors::detail::use_cuda_driver(SAFETENSORS_FAKE_CUDA);
  (void)safetensors::Device::cuda(0);
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1U, 12U);
  const std::size_t nbytes = kMany * kilobytes * 1024;
  const Files files(args[0], nbytes);
  std::vector<std::byte> pinned(512 * kMiB);
  bench::pin(pinned);

  std::vector<Row> rows;
  for (const Files::File& file : files.all) {
    for (const int devices : {1, 2}) {
      for (const Loader& loader : kLoaders) {
        rows.push_back({.tensors = file.tensors, .devices = devices, .loader = loader});
      }
    }
  }
  std::vector<double> rates;
  // The first round pins memory and fills caches.
  for (std::size_t i = 0; i <= repeats; ++i) {
    for (const Files::File& file : files.all) {
      const double rate = read_rate(file.path, threads) / 2;
      if (i > 0) rates.push_back(rate);
      for (Row& row : rows) {
        if (row.tensors != file.tensors) continue;
        Row discarded = row;
        measure(i > 0 ? row : discarded, {file.path, row.devices, pinned}, rate, nbytes);
      }
    }
  }
  std::printf(
      "%s build, %u readers, files of %zu MB, %zu repeats. Link: %.2f GB/s and %.0f us a copy.\n\n",
      SAFETENSORS_BUILD_TYPE, threads, nbytes / 1'000'000, repeats, median(rates) / 1e9,
      kLatencyNs / 1e3);
  print(rows);
}

}  // namespace

int main(int argc, char** argv) { return bench::run_program(argc, argv, kUsage, run); }
