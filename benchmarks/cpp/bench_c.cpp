// Times rows of a mapped and a read file through the C interface, beside the same through C++.
// Makes its file first. Prints a line of JSON for each row of the table.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "safetensors/safetensors.h"
#include "safetensors/safetensors.hpp"
#include "timing.hpp"

namespace {

using safetensors::Dtype;
using safetensors::Index;
using safetensors::SafeOpen;

constexpr const char* kUsage = "usage: bench_c FILE [ROWS] [ITERATIONS]\n";
constexpr std::size_t kColumns = 4096;

void check(std::int32_t code, const safetensors_error& error) {
  if (code != SAFETENSORS_OK) throw std::runtime_error(error.text);
}

/// A file of one tensor of BF16, open in both ways.
class Files {
 public:
  Files(const std::string& path, bool is_mapped)
      : cpp_(path,
             {.backend = is_mapped ? safetensors::Backend::kMmap : safetensors::Backend::kPread}) {
    safetensors_options options{};
    options.size = sizeof options;
    options.backend = is_mapped ? SAFETENSORS_MMAP : SAFETENSORS_PREAD;
    safetensors_error error{};
    check(safetensors_open(path.data(), path.size(), &options, &c_, &error), error);
    check(safetensors_find(c_, "w", 1, &tensor_, &error), error);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  ~Files() { safetensors_close(c_); }

  /// Reads each row by itself.
  void rows_by_cpp(std::size_t rows, std::span<std::uint16_t> to) const {
    const safetensors::TensorInfo& info = cpp_.at("w");
    for (std::size_t i = 0; i < rows; ++i) {
      const auto part = cpp_.select_part(info, {Index::at(static_cast<std::int64_t>(i))});
      cpp_.read(info, part.runs, std::as_writable_bytes(to));
    }
  }
  void rows_by_c(std::size_t rows, std::span<std::uint16_t> to) const {
    safetensors_error error{};
    for (std::size_t i = 0; i < rows; ++i) {
      const safetensors_index index = {SAFETENSORS_ONE, 0, static_cast<std::int64_t>(i), 0, 0};
      const safetensors_request request = {
          &tensor_, &index, 1, to.data(), to.size_bytes(), SAFETENSORS_AS_STORED, 0};
      check(safetensors_read(c_, &request, 1, nullptr, &error), error);
    }
  }
  /// Converts each row to F32 by itself, after the check for truncated files that C makes.
  void decoded_rows_by_cpp(std::size_t rows, std::span<float> to) const {
    const safetensors::TensorInfo& info = cpp_.at("w");
    for (std::size_t i = 0; i < rows; ++i) {
      const auto row = cpp_.get_slice(info, {Index::at(static_cast<std::int64_t>(i))});
      if (cpp_.mapping() && safetensors::is_truncated(row.bytes())) throw std::runtime_error("");
      safetensors::to_float(row, to);
    }
  }
  void decoded_rows_by_c(std::size_t rows, std::span<float> to) const {
    safetensors_error error{};
    for (std::size_t i = 0; i < rows; ++i) {
      const safetensors_index index = {SAFETENSORS_ONE, 0, static_cast<std::int64_t>(i), 0, 0};
      const safetensors_request request = {&tensor_,        &index,          1, to.data(),
                                           to.size_bytes(), SAFETENSORS_F32, 0};
      check(safetensors_read(c_, &request, 1, nullptr, &error), error);
    }
  }
  /// Converts all rows to F32 at once.
  void floats_by_cpp(std::span<float> to) const {
    const safetensors::TensorView view = cpp_.get_tensor("w");
    safetensors::to_float(view, to);
  }
  void floats_by_c(std::span<float> to) const {
    safetensors_error error{};
    const safetensors_request request = {&tensor_,        nullptr,         0, to.data(),
                                         to.size_bytes(), SAFETENSORS_F32, 0};
    check(safetensors_read(c_, &request, 1, nullptr, &error), error);
  }

 private:
  SafeOpen cpp_;
  safetensors_file* c_ = nullptr;
  safetensors_tensor tensor_{};
};

template <typename Cpp, typename C>
void compare(const char* what, bool is_mapped, std::size_t iterations, const Cpp& by_cpp,
             const C& by_c) {
  bench::Times cpp, c;
  for (std::size_t i = 0; i < iterations; ++i) {
    cpp.run([&] { return by_cpp(), 0; });
    c.run([&] { return by_c(), 0; });
  }
  std::printf(
      "{\"program\": \"bench_c\", \"build\": \"%s\", \"what\": \"%s\", \"backend\": \"%s\", "
      "\"cpp\": %.6f, \"c\": %.6f, \"ratio\": %.3f}\n",
      SAFETENSORS_BUILD_TYPE, what, is_mapped ? "mmap" : "pread", cpp.min(), c.min(),
      c.min() / cpp.min());
}

void run(const std::vector<std::string>& args) {
  const auto [rows, iterations] = bench::counts_after_first<2>(args, {20'000, 10});
  if (std::filesystem::exists(args[0])) throw std::runtime_error(args[0] + " exists");
  {
    const std::vector<std::uint64_t> shape = {rows, kColumns};
    const std::vector<std::uint16_t> values(rows * kColumns, 0x3F80);
    const safetensors::TensorData tensor = {"w", shape, std::as_bytes(std::span(values)),
                                            Dtype::kBF16};
    safetensors::save_file({&tensor, 1}, args[0]);
  }
  std::vector<std::uint16_t> row(kColumns);
  std::vector<float> floats(rows * kColumns);
  for (const bool is_mapped : {true, false}) {
    const Files files(args[0], is_mapped);
    compare(
        "rows", is_mapped, iterations, [&] { files.rows_by_cpp(rows, row); },
        [&] { files.rows_by_c(rows, row); });
    const std::span<float> one = std::span(floats).first(kColumns);
    compare(
        "decoded rows", is_mapped, iterations, [&] { files.decoded_rows_by_cpp(rows, one); },
        [&] { files.decoded_rows_by_c(rows, one); });
    compare(
        "floats", is_mapped, iterations, [&] { files.floats_by_cpp(floats); },
        [&] { files.floats_by_c(floats); });
  }
  std::filesystem::remove(args[0]);
}

}  // namespace

int main(int argc, char** argv) { return bench::run_program(argc, argv, kUsage, run); }
