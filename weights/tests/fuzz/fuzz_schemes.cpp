// Models of quantisation schemes: config.json and a safetensors file, or a GGUF file. They are
// refused with a WeightsError, or every tensor can be described, and is read or refused. Rows that
// are decoded alone are those of the whole.
//
// Input: config.json, a NUL and the file; or the file alone. `replay_schemes --join` makes such
// inputs of the models of weights/tests/data/schemes and seeds.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.hpp"
#include "fuzz_input.hpp"
#include "safetensors/weights/error.hpp"
#include "safetensors/weights/provider.hpp"

namespace {

namespace fs = std::filesystem;
using safetensors::weights::ModelOptions;
using safetensors::weights::WeightInfo;
using safetensors::weights::WeightProvider;

/// A folder of this process, which is removed when it ends.
struct Folder {
  fs::path path;
  Folder() {
    std::random_device random;
    do {
      path = fs::temp_directory_path() / ("fuzz_schemes-" + std::to_string(random()));
    } while (!fs::create_directory(path));
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

void write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// Runs a check, which may refuse its input.
template <typename Check>
void refused_or(const Check& check) {
  try {
    check();
  } catch (const safetensors::weights::WeightsError& error) {
    fuzz::require(!safetensors::find_invalid_utf8(error.what()), "an error is text");
  }
}

/// Decodes all rows, and the second half of them alone.
void check_values(const WeightProvider& model, const WeightInfo& info) {
  std::uint64_t rows = 1;
  std::uint64_t columns = 1;
  for (std::size_t axis = 0; axis < info.shape.size(); ++axis) {
    const auto size = static_cast<std::uint64_t>(info.shape[axis]);
    if (size > 1U << 20) return;
    (axis + 1 < info.shape.size() ? rows : columns) *= size;
    if (rows > 1U << 20 || columns > 1U << 20 || rows * columns > 1U << 20) return;
  }
  const auto count = [&](std::uint64_t n) { return static_cast<std::size_t>(n * columns); };
  std::vector<float> all(count(rows));
  model.dequantize(info.name, all);
  const std::uint64_t half = rows / 2;
  std::vector<float> some(count(rows - half));
  model.dequantize(info.name, some, static_cast<std::int64_t>(half));
  fuzz::require(some.empty() || std::memcmp(some.data(), all.data() + count(half),
                                            some.size() * sizeof(float)) == 0,
                "rows are those of the whole: " + info.name);
  std::vector<std::uint16_t> halves(count(rows));
  model.dequantize_bf16(info.name, halves);
}

void check_model(const fs::path& path) {
  ModelOptions options;
  options.mmap = false;  // reads into memory of exactly the size, so that a sanitizer sees more
  const auto model = WeightProvider::open(path, options);
  const WeightInfo* last = nullptr;
  const auto check = [&](const WeightInfo& info) {
    const auto parts = model.parts(info.name);
    fuzz::require(!parts.empty(), "a tensor has parts");
    for (std::size_t i = 0; i < parts.size(); ++i) {
      fuzz::require(model.get_part(info.name, i).nbytes() == parts[i].stored_bytes,
                    "parts have the bytes of the file");
    }
    refused_or([&] {
      const auto buffer = model.get_tensor(info.name);
      std::size_t sum = 0;
      for (const std::size_t section : buffer.sections()) sum += section;
      fuzz::require(sum == buffer.nbytes(), "sections cover the buffer");
    });
    refused_or([&] { check_values(model, info); });
    if (last != nullptr) {
      refused_or(
          [&] { (void)model.fuse_weights(std::vector<std::string_view>{last->name, info.name}); });
    }
    last = &info;
  };
  for (const WeightInfo& info : model.tensors()) check(info);
  for (const std::string& name : model.unmapped()) check(model.info(name));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with("GGUF")) {
    const fs::path path = folder.path / "model.gguf";
    write(path, text);
    refused_or([&] { check_model(path); });
    return 0;
  }
  const bool has_config = text.starts_with('{') && text.find('\0') != std::string_view::npos;
  const std::size_t end = has_config ? text.find('\0') : 0;
  const fs::path config = folder.path / "config.json";
  if (has_config) {
    write(config, text.substr(0, end));
  } else {
    fs::remove(config);
  }
  write(folder.path / "model.safetensors", has_config ? text.substr(end + 1) : text);
  refused_or([&] { check_model(folder.path); });
  return 0;
}
