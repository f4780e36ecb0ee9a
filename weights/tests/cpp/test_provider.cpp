// WeightProvider with models of every format.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "safetensors/weights/provider.hpp"
#include "support.hpp"

using safetensors::weights::Errc;
using safetensors::weights::ModelOptions;
using safetensors::weights::Storage;
using safetensors::weights::WeightBuffer;
using safetensors::weights::WeightInfo;
using safetensors::weights::WeightProvider;

namespace {

namespace fs = std::filesystem;

fs::path data(std::string_view name) {
  return fs::path(SAFETENSORS_SOURCE_DIR) / "weights" / "tests" / "data" / name;
}

template <typename Call>
Errc code_of(const Call& call) {
  try {
    call();
  } catch (const safetensors::weights::WeightsError& error) {
    return error.code();
  }
  return {};
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::ranges::equal(a, b);
}

}  // namespace

TEST_CASE("raw tensors and blocks are views, packs are built and aligned") {
  const auto gguf = WeightProvider::open(data("gguf/llama_q8_0.gguf"));
  for (const WeightInfo& info : gguf.tensors()) CHECK(gguf.get_tensor(info.name).is_view());
  CHECK(gguf.cache_stats().bytes == 0);
  const auto mlx = WeightProvider::open(data("mlx/llama_q4_g64_bf16"));
  for (const WeightInfo& info : mlx.tensors()) {
    const WeightBuffer buffer = mlx.get_tensor(info.name);
    CAPTURE(info.name);
    CHECK_FALSE(buffer.is_view());
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.bytes().data()) % 64 == 0);
    const auto& sections = buffer.sections();
    CHECK(sections[0] + sections[1] + sections[2] == buffer.nbytes());
    CHECK(buffer.section(2).size() == sections[2]);
  }
}

TEST_CASE("a path that contains a NUL is refused, not truncated") {
  for (const char* name : {"gguf/llama_q8_0.gguf", "mlx/llama_q4_g64_bf16"}) {
    fs::path path = data(name);
    path += std::string(1, '\0') + ".gguf";
    CHECK(code_of([&] { (void)WeightProvider::open(path); }) == Errc::bad_name);
    CHECK(code_of([&] { (void)WeightProvider::detect_format(path); }) == Errc::bad_name);
  }
}

TEST_CASE("mapping and reading give the same") {
  for (const char* name : {"gguf/llama_q4_k_m.gguf", "mlx/llama_mixed", "mlx/mixtral_nvfp4_global",
                           "gguf/llama_split_q4_0-00002-of-00003.gguf"}) {
    CAPTURE(name);
    const auto mapped = WeightProvider::open(data(name));
    ModelOptions options;
    options.mmap = false;
    const auto read = WeightProvider::open(data(name), options);
    REQUIRE(mapped.tensors().size() == read.tensors().size());
    for (const WeightInfo& info : mapped.tensors()) {
      const WeightBuffer buffer = read.get_tensor(info.name);
      CHECK_FALSE(buffer.is_view());
      CHECK(same(buffer.bytes(), mapped.get_tensor(info.name).bytes()));
    }
  }
}

TEST_CASE("an allocator owns every buffer") {
  std::atomic<int> live{0};
  std::atomic<std::size_t> asked{0};
  ModelOptions options;
  options.allocator = [&](std::size_t nbytes) {
    ++live;
    asked += nbytes;
    auto* const memory = static_cast<std::byte*>(::operator new(nbytes, std::align_val_t{64}));
    return std::shared_ptr<std::byte>(memory, [&live](std::byte* p) {
      --live;
      ::operator delete(p, std::align_val_t{64});
    });
  };
  {
    auto model = WeightProvider::open(data("gguf/llama_q4_0.gguf"), options);
    const auto plain = WeightProvider::open(data("gguf/llama_q4_0.gguf"));
    std::size_t nbytes = 0;
    for (const WeightInfo& info : model.tensors()) {
      const WeightBuffer buffer = model.get_tensor(info.name);
      CHECK_FALSE(buffer.is_view());
      CHECK(same(buffer.bytes(), plain.get_tensor(info.name).bytes()));
      nbytes += buffer.nbytes();
    }
    CHECK(asked == nbytes);
    CHECK(live == static_cast<int>(model.tensors().size()));
    const WeightBuffer kept = model.get_tensor("output.weight");
    model.clear_cache();
    CHECK(live == 1);
  }
  CHECK(live == 0);
}

TEST_CASE("what an allocator throws passes through, and the next call works") {
  bool full = true;
  ModelOptions options;
  options.allocator = [&](std::size_t nbytes) -> std::shared_ptr<std::byte> {
    if (full) throw std::bad_alloc();
    return {new std::byte[nbytes], std::default_delete<std::byte[]>()};
  };
  const auto model = WeightProvider::open(data("mlx/llama_q4_g64_bf16"), options);
  CHECK_THROWS_AS((void)model.get_tensor("output.weight"), std::bad_alloc);
  full = false;
  CHECK(model.get_tensor("output.weight").nbytes() > 0);
}

TEST_CASE("threads that ask for the same tensors share one build of each") {
  constexpr std::size_t kThreads = 8;
  const auto model = WeightProvider::open(data("mlx/llama_q4_g64_bf16"));
  const std::size_t count = std::min<std::size_t>(50, model.tensors().size());
  std::array<std::vector<const std::byte*>, kThreads> seen;
  {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::vector<float> row;
        for (std::size_t i = 0; i < count; ++i) {
          const WeightInfo& info = model.tensors()[i];
          seen[t].push_back(model.get_tensor(info.name).bytes().data());
          row.resize(static_cast<std::size_t>(info.shape.back()));
          model.dequantize(info.name, row, 0, 1);
        }
      });
    }
    for (std::thread& each : threads) each.join();
  }
  for (std::size_t t = 1; t < kThreads; ++t) CHECK(seen[t] == seen[0]);
  CHECK(model.cache_stats().misses == count);
  CHECK(model.cache_stats().hits == count * (kThreads - 1));
}

TEST_CASE("rows that do not exist are refused") {
  const auto model = WeightProvider::open(data("gguf/llama_q4_0.gguf"));
  const std::string name = "layers.0.attention.q.weight";  // 64 rows of 64
  std::vector<float> out(64);
  const auto code = [&](std::int64_t row0, std::int64_t rows) {
    return code_of([&] { model.dequantize(name, out, row0, rows); });
  };
  CHECK(code(0, 1) == Errc{});
  CHECK(code(63, -1) == Errc{});
  CHECK(code(64, 1) == Errc::bad_shape);
  CHECK(code(63, 2) == Errc::bad_shape);
  CHECK(code(-1, 1) == Errc::bad_shape);
  CHECK(code(0, -2) == Errc::bad_shape);
  CHECK(code(0, INT64_MAX) == Errc::bad_shape);
  CHECK(code(INT64_MAX, 1) == Errc::bad_shape);
  CHECK(code(INT64_MIN, -1) == Errc::bad_shape);
  CHECK(code(0, 2) == Errc::bad_shape);  // `out` is too small
  CHECK(code_of([&] { model.dequantize(name, {}, 64, 0); }) == Errc{});
}

TEST_CASE("an interrupt stops the build, and nothing is cached") {
  const auto model = WeightProvider::open(data("mlx/llama_q4_g64_bf16"));
  struct Stop {};
  bool stopped = false;
  try {
    (void)model.get_tensor("output.weight", [] { throw Stop{}; });
  } catch (const Stop&) {
    stopped = true;
  }
  // Small tensors may be finished before the first call of the interrupt.
  CHECK(model.cache_stats().entries == (stopped ? 0 : 1));
  CHECK(model.get_tensor("output.weight").nbytes() > 0);
}

TEST_CASE("a weight is found by its name in the file") {
  for (const char* name : {"gguf/llama_q4_k_m.gguf", "mlx/llama_q4_g64_bf16"}) {
    const auto model = WeightProvider::open(data(name));
    for (const WeightInfo& info : model.tensors()) {
      CHECK(&model.info_of_source(info.source) == &info);
      if (info.source == info.name) continue;
      CHECK(code_of([&] { (void)model.info(info.source); }) == Errc::unknown_tensor);
    }
    CHECK(code_of([&] { (void)model.info_of_source("nope"); }) == Errc::unknown_tensor);
    CHECK(code_of([&] { (void)model.info_of_source(""); }) == Errc::unknown_tensor);
  }
}

TEST_CASE("an unknown name is answered with similar names") {
  const auto model = WeightProvider::open(data("gguf/llama_q4_0.gguf"));
  try {
    (void)model.info("layers.0.ffn.upp.weight");
    FAIL("found");
  } catch (const safetensors::weights::WeightsError& error) {
    CHECK(error.code() == Errc::unknown_tensor);
    CHECK(std::string(error.what()).find("`layers.0.ffn.up.weight`") != std::string::npos);
    CHECK(error.subject() == "layers.0.ffn.upp.weight");
  }
  CHECK_FALSE(model.has_tensor(""));
  CHECK(code_of([&] { (void)model.fuse_weights({}); }) == Errc::mixed_types);
}

TEST_CASE("the cache evicts buffers above its size") {
  ModelOptions options;
  options.cache_bytes = 10'000;
  const auto model = WeightProvider::open(data("mlx/llama_q4_g64_bf16"), options);
  for (const WeightInfo& info : model.tensors()) (void)model.get_tensor(info.name);
  CHECK(model.cache_stats().bytes <= 10'000);
  CHECK(model.cache_stats().evictions > 0);
}
