// Times the decoding of quantised weights, type by type, for each build of the inner loops that
// this machine can run, by one thread and by all. Prints one line of JSON a type and build.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "dequant/dequant.hpp"
#include "dequant/ggml_types.hpp"
#include "safetensors/buffer.hpp"
#include "timing.hpp"

namespace {

namespace weights = safetensors::weights;
using safetensors::Buffer;
using weights::Kernels;
using weights::Output;
using weights::QuantMode;

constexpr const char* kUsage =
    "usage: bench_dequant ROWS ITERATIONS [NAME [f32|f16|bf16]]\n"
    "ROWS rows of 4096 values; NAME is a part of the types' names (affine4.g64, Q4_K)\n";
constexpr std::uint64_t kColumns = 4096;
// Below what is shared out among threads, and whole blocks.
constexpr std::uint64_t kRowsAtATime = 128;

/// Decodes rows from that one on.
using Decode = std::function<void(const Kernels&, std::uint64_t first_row, std::uint64_t rows,
                                  Output, std::byte* to)>;

struct Subject {
  std::string name;
  double bits_per_value;
  Decode decode;
};

/// Random, but such that no scale is infinite or tiny: those can be slow.
Buffer make_input(std::size_t nbytes) {
  Buffer input(nbytes);
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < nbytes; i += 8) {
    const std::uint64_t bytes = (random() & 0x3F3F3F3F3F3F3F3FU) + 0x2020202020202020U;
    std::memcpy(input.data() + i, &bytes, std::min<std::size_t>(8, nbytes - i));
  }
  return input;
}

Subject block_subject(const weights::GgmlType& type, const std::byte* input) {
  const std::uint64_t blocks_per_row = kColumns / type.block_elements;
  const std::uint64_t row_nbytes = blocks_per_row * type.block_bytes;
  return {std::string(type.name), 8.0 * type.block_bytes / type.block_elements,
          [=, id = type.id](const Kernels& kernels, std::uint64_t first_row, std::uint64_t rows,
                            Output output, std::byte* to) {
            weights::dequantize_blocks(id, input + first_row * row_nbytes, rows * blocks_per_row,
                                       output, to, {}, kernels);
          }};
}

Subject pack_subject(std::string name, const weights::QuantParams& params, std::size_t scale_nbytes,
                     std::uint64_t all_rows, const std::byte* input) {
  const auto bits = static_cast<std::uint64_t>(params.bits);
  const std::uint64_t row_nbytes = kColumns / 8 * bits;
  const std::uint64_t row_scales =
      kColumns / static_cast<std::uint64_t>(params.group_size) * scale_nbytes;
  const bool affine = params.mode == QuantMode::affine;
  const std::byte* scales = input + all_rows * row_nbytes;
  const std::byte* biases = scales + all_rows * row_scales;
  const std::uint64_t nbytes = row_nbytes + (affine ? 2 : 1) * row_scales;
  return {std::move(name), 8.0 * static_cast<double>(nbytes) / kColumns,
          [=](const Kernels& kernels, std::uint64_t first_row, std::uint64_t rows, Output output,
              std::byte* to) {
            weights::PackRows pack;
            pack.params = params;
            pack.scale_type = affine ? weights::ScaleType::f16 : weights::ScaleType::u8;
            pack.columns = kColumns;
            pack.words = input + first_row * row_nbytes;
            pack.scales = scales + first_row * row_scales;
            pack.biases = affine ? biases + first_row * row_scales : nullptr;
            weights::dequantize_pack(pack, rows, output, to, {}, kernels);
          }};
}

std::vector<Subject> subjects(std::uint64_t rows, const std::byte* input) {
  std::vector<Subject> all;
  for (const int bits : {1, 2, 3, 4, 5, 6, 8}) {
    all.push_back(pack_subject("affine" + std::to_string(bits) + ".g64",
                               {QuantMode::affine, bits, 64}, 2, rows, input));
  }
  all.push_back(pack_subject("mxfp4", {QuantMode::mxfp4, 4, 32}, 1, rows, input));
  all.push_back(pack_subject("mxfp8", {QuantMode::mxfp8, 8, 32}, 1, rows, input));
  all.push_back(pack_subject("nvfp4", {QuantMode::nvfp4, 4, 16}, 1, rows, input));
  for (std::uint32_t id = 0; id < weights::ggml::kEnd; ++id) {
    const weights::GgmlType* type = weights::find_ggml_type(id);
    if (type != nullptr && weights::can_dequantize(id)) all.push_back(block_subject(*type, input));
  }
  return all;
}

void time_decoding(std::uint64_t rows, std::size_t iterations, const std::string& wanted,
                   Output output) {
  const std::uint64_t values = rows * kColumns;
  const Buffer input = make_input(values * 10);
  const Buffer to(values * weights::size_of(output));
  std::memset(to.data(), 1, to.size());
  const auto gigabytes = static_cast<double>(to.size()) * 1e-9;
  bench::Times copy;
  for (std::size_t i = 0; i < iterations; ++i) {
    copy.run([&] { return std::memcpy(to.data(), input.data(), to.size()); });
  }
  std::printf(
      "{\"program\": \"bench_dequant\", \"build\": \"%s\", \"values\": %llu, "
      "\"memcpy_gb_per_s\": %.2f}\n",
      SAFETENSORS_BUILD_TYPE, static_cast<unsigned long long>(values), gigabytes / copy.min());
  for (const Subject& subject : subjects(rows, input.data())) {
    if (subject.name.find(wanted) == std::string::npos) continue;
    for (const Kernels* kernels : weights::usable_kernels()) {
      bench::Times one;
      bench::Times all;
      for (std::size_t i = 0; i < iterations; ++i) {
        one.run([&] {
          for (std::uint64_t row = 0; row < rows; row += kRowsAtATime) {
            subject.decode(*kernels, row, std::min(kRowsAtATime, rows - row), output,
                           to.data() + row * kColumns * weights::size_of(output));
          }
          return true;
        });
        all.run([&] {
          subject.decode(*kernels, 0, rows, output, to.data());
          return true;
        });
      }
      std::printf(
          "{\"type\": \"%s\", \"kernels\": \"%s\", \"bits_per_value\": %.3f, "
          "\"one_thread_gb_per_s\": %.2f, \"median\": %.2f, \"all_threads_gb_per_s\": "
          "%.2f, \"seconds\": %.6f}\n",
          subject.name.c_str(), kernels->name, subject.bits_per_value, gigabytes / one.min(),
          gigabytes / one.median(), gigabytes / all.min(), all.min());
    }
  }
}

void run(const std::vector<std::string>& args) {
  const auto rows = args.size() < 2 ? std::nullopt : bench::count_from(args[0]);
  const auto iterations = args.size() < 2 ? std::nullopt : bench::count_from(args[1]);
  const std::string name = args.size() > 2 ? args[2] : "";
  const std::string type = args.size() > 3 ? args[3] : "f32";
  if (!rows || !iterations || args.size() > 4 ||
      (type != "f32" && type != "f16" && type != "bf16")) {
    throw bench::BadArguments();
  }
  time_decoding(*rows, *iterations, name,
                type == "f32"   ? Output::f32
                : type == "f16" ? Output::f16
                                : Output::bf16);
}

}  // namespace

int main(int argc, char** argv) { return bench::run_program(argc, argv, kUsage, run); }
