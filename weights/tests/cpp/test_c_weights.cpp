// C: models, weights, buffers and rows, compared with WeightProvider; hostile calls; threads.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "c_weights_support.hpp"
#include "safetensors/weights/provider.hpp"

using safetensors::weights::WeightBuffer;
using safetensors::weights::WeightInfo;
using safetensors::weights::WeightPart;
using safetensors::weights::WeightProvider;
using test::CBuffer;
using test::get;
using test::open_weights;
using test::text;
using test::weight;
using test::Weights;

namespace {

constexpr const char* kModels[] = {"gguf/llama_q4_k_m.gguf",
                                   "gguf/llama_split_q4_0-00002-of-00003.gguf",
                                   "mlx/llama_mixed",
                                   "mlx/mixtral_nvfp4_global",
                                   "mlx/gemma2_q4_g64_bf16",
                                   "schemes/fp8_blocks",
                                   "schemes/awq"};

bool same(const safetensors_bytes& c, const WeightBuffer& cpp) {
  if (c.nbytes != cpp.nbytes() || c.is_view != static_cast<std::uint32_t>(cpp.is_view())) {
    return false;
  }
  for (std::size_t i = 0; i < SAFETENSORS_SECTIONS; ++i) {
    const std::size_t size = i < WeightBuffer::kSections ? cpp.sections()[i] : 0;
    if (c.sections[i] != size) return false;
  }
  return c.nbytes == 0 || std::memcmp(c.data, cpp.bytes().data(), cpp.nbytes()) == 0;
}

/// An allocator that counts what it has given.
struct Counting {
  std::atomic<int> live{0};
  std::atomic<int> releases{0};
  std::size_t offset = 0;  ///< of what it returns, from an aligned address
  bool is_full = false;

  [[nodiscard]] safetensors_allocator allocator() {
    auto result = test::sized<safetensors_allocator>();
    result.context = this;
    result.allocate = [](void* context, std::size_t nbytes) -> void* {
      auto& self = *static_cast<Counting*>(context);
      if (self.is_full) return nullptr;
      ++self.live;
      auto* const memory =
          static_cast<std::byte*>(::operator new(nbytes + self.offset, std::align_val_t{64}));
      return memory + self.offset;
    };
    result.deallocate = [](void* context, void* memory, std::size_t) {
      auto& self = *static_cast<Counting*>(context);
      --self.live;
      ::operator delete(static_cast<std::byte*>(memory) - self.offset, std::align_val_t{64});
    };
    result.release = [](void* context) { ++static_cast<Counting*>(context)->releases; };
    return result;
  }
};

}  // namespace

TEST_CASE("C: a model and its weights are those of WeightProvider") {
  for (const char* name : kModels) {
    CAPTURE(name);
    const Weights weights = open_weights(name);
    const auto model = WeightProvider::open(test::model_path(name));
    safetensors_weights_info info{};
    REQUIRE(safetensors_weights_look(weights.get(), &info, nullptr) == 0);
    CHECK(info.count == model.tensors().size());
    CHECK(info.metadata_count == model.metadata().size());
    CHECK(info.format == static_cast<std::int32_t>(model.format()));
    CHECK(text(info.scheme, info.scheme_size) == model.scheme());
    CHECK(text(info.output_name, info.output_name_size) == model.output_name());
    std::int32_t format = -1;
    const std::string path = test::model_path(name);
    CHECK(safetensors_weights_detect(path.data(), path.size(), &format, nullptr) == 0);
    CHECK(format == info.format);
    for (std::size_t i = 0; i < info.count; ++i) {
      const WeightInfo& wanted = model.tensors()[i];
      CAPTURE(wanted.name);
      safetensors_weight found{};
      REQUIRE(safetensors_weights_at(weights.get(), i, &found, nullptr) == 0);
      CHECK(text(found.name, found.name_size) == wanted.name);
      CHECK(text(found.source, found.source_size) == wanted.source);
      CHECK(text(found.type_name, found.type_name_size) == wanted.type_name);
      CHECK(text(found.scheme, found.scheme_size) == wanted.scheme);
      CHECK(std::vector(found.shape, found.shape + found.rank) == wanted.shape);
      CHECK(found.type == wanted.code);
      CHECK(found.scales_type == wanted.scales_code);
      CHECK(found.storage == static_cast<std::int32_t>(wanted.storage));
      CHECK(found.stored_nbytes == wanted.stored_bytes);
      CHECK(((found.flags & SAFETENSORS_WEIGHT_DECODED) != 0) == wanted.is_decoded);
      if (wanted.quant) {
        CHECK(found.quant_mode == static_cast<std::int32_t>(wanted.quant->mode) + 1);
        CHECK(found.bits == static_cast<std::uint32_t>(wanted.quant->bits));
        CHECK(found.group_columns == static_cast<std::uint64_t>(wanted.quant->group_size));
      } else {
        CHECK(found.quant_mode == SAFETENSORS_QUANT_NONE);
        CHECK(found.bits == wanted.scheme_params.bits);
        CHECK(found.group_columns == wanted.scheme_params.group_columns);
      }
      const auto offset = model.norm_weight_offset_of(wanted.name);
      CHECK(((found.flags & SAFETENSORS_WEIGHT_NORM_OFFSET) != 0) == offset.has_value());
      CHECK(found.norm_offset == offset.value_or(0));
      // By both of its names.
      CHECK(weight(weights, wanted.name).shape == found.shape);
      safetensors_weight by_source{};
      REQUIRE(safetensors_weights_find_source(weights.get(), found.source, found.source_size,
                                              &by_source, nullptr) == 0);
      CHECK(by_source.name == found.name);
      CHECK(by_source.source == found.source);
      const std::vector<WeightPart> parts = model.parts(wanted.name);
      REQUIRE(found.part_count == parts.size());
      for (std::size_t p = 0; p < parts.size(); ++p) {
        safetensors_part part{};
        REQUIRE(safetensors_weights_part(weights.get(), found.name, found.name_size, p, &part,
                                         nullptr) == 0);
        CHECK(text(part.role, part.role_size) == parts[p].role);
        CHECK(text(part.source, part.source_size) == parts[p].source);
        CHECK(text(part.type_name, part.type_name_size) == parts[p].type_name);
        CHECK(std::vector(part.shape, part.shape + part.rank) == parts[p].shape);
        CHECK(part.type == parts[p].code);
        CHECK(part.stored_nbytes == parts[p].stored_bytes);
      }
    }
  }
}

TEST_CASE("C: buffers, parts and rows are those of WeightProvider") {
  for (const char* name : kModels) {
    CAPTURE(name);
    const Weights weights = open_weights(name);
    const auto model = WeightProvider::open(test::model_path(name));
    for (const WeightInfo& info : model.tensors()) {
      CAPTURE(info.name);
      CHECK(same(test::bytes_of(get(weights, info.name)), model.get_tensor(info.name)));
      safetensors_buffer* stored = nullptr;
      REQUIRE(safetensors_weights_get_stored(weights.get(), info.name.data(), info.name.size(),
                                             nullptr, &stored, nullptr) == 0);
      CHECK(same(test::bytes_of(CBuffer(stored)), model.get_stored(info.name)));
      for (std::size_t p = 0; p < model.parts(info.name).size(); ++p) {
        safetensors_buffer* part = nullptr;
        REQUIRE(safetensors_weights_get_part(weights.get(), info.name.data(), info.name.size(), p,
                                             nullptr, &part, nullptr) == 0);
        CHECK(same(test::bytes_of(CBuffer(part)), model.get_part(info.name, p)));
      }
      if (!info.is_decoded || info.shape.size() < 2 || info.shape[0] < 3) continue;
      const auto columns = static_cast<std::size_t>(info.shape.back());
      std::vector<float> wanted(2 * columns), floats(2 * columns);
      std::vector<std::uint16_t> wanted_half(2 * columns), halfs(2 * columns);
      const auto decode = [&](std::int32_t dtype, void* to, std::size_t nbytes) {
        return safetensors_weights_decode(weights.get(), info.name.data(), info.name.size(), 1, 2,
                                          dtype, to, nbytes, nullptr, nullptr);
      };
      model.dequantize(info.name, wanted, 1, 2);
      CHECK(decode(SAFETENSORS_F32, floats.data(), floats.size() * 4) == 0);
      CHECK(std::memcmp(floats.data(), wanted.data(), floats.size() * 4) == 0);  // some are NaN
      model.dequantize_f16(info.name, wanted_half, 1, 2);
      CHECK(decode(SAFETENSORS_F16, halfs.data(), halfs.size() * 2) == 0);
      CHECK(halfs == wanted_half);
      model.dequantize_bf16(info.name, wanted_half, 1, 2);
      CHECK(decode(SAFETENSORS_BF16, halfs.data(), halfs.size() * 2) == 0);
      CHECK(halfs == wanted_half);
      CHECK(decode(SAFETENSORS_F32, floats.data(), floats.size() * 4 - 4) ==
            SAFETENSORS_INVALID_TENSOR_INFO);
    }
  }
}

TEST_CASE("C: options are those of ModelOptions") {
  const auto buffer_with = [](std::uint32_t flags) {
    auto options = test::sized<safetensors_weights_options>();
    options.flags = flags;
    const Weights weights = open_weights("mlx/llama_q4_g64_bf16", &options);
    const safetensors_weight found = weight(weights, "output_norm.weight");
    return std::pair(std::string(found.type_name), weight(weights, "output.weight").scales_type);
  };
  CHECK(buffer_with(0).second == safetensors::weights::code::kF16);
  CHECK(buffer_with(SAFETENSORS_WEIGHTS_KEEP_SCALES).second == safetensors::weights::code::kBF16);
  CHECK(buffer_with(0).first == "F16");
  CHECK(buffer_with(SAFETENSORS_WEIGHTS_KEEP_BF16).first == "BF16");

  auto options = test::sized<safetensors_weights_options>();
  options.flags = SAFETENSORS_WEIGHTS_NO_MMAP;
  const Weights read = open_weights("gguf/llama_q8_0.gguf", &options);
  CHECK(test::bytes_of(get(read, "output_norm.weight")).is_view == 0);
  safetensors_error error{};
  options.flags = 1U << 30;
  CHECK(test::open_weights_code("gguf/llama_q8_0.gguf", options, &error) ==
        SAFETENSORS_INVALID_ARGUMENT);
  CHECK(std::string(error.text) == "unknown flags: 1073741824");
  options.flags = 0;
  options.quant_bits = 4;  // of no mode
  CHECK(test::open_weights_code("gguf/llama_q8_0.gguf", options) == SAFETENSORS_INVALID_ARGUMENT);
  options.quant_mode = 5;
  CHECK(test::open_weights_code("gguf/llama_q8_0.gguf", options) == SAFETENSORS_INVALID_ARGUMENT);
  options.quant_mode = SAFETENSORS_QUANT_AFFINE;
  options.quant_group_size = 64;
  CHECK(test::open_weights_code("gguf/llama_q8_0.gguf", options) == SAFETENSORS_OK);
  options = test::sized<safetensors_weights_options>();
  options.name = "other";
  options.name_size = 5;
  CHECK(test::open_weights_code("mlx/llama_q4_g64_bf16", options) != SAFETENSORS_OK);
}

TEST_CASE("C: an allocator owns every buffer, and is released once") {
  Counting counting;
  safetensors_allocator allocator = counting.allocator();
  auto options = test::sized<safetensors_weights_options>();
  options.allocator = &allocator;
  CBuffer kept;
  {
    const Weights weights = open_weights("mlx/llama_q4_g64_bf16", &options);
    allocator = {};  // the library has a copy
    const safetensors_text names[] = {{"layers.0.attention.k.weight", SIZE_MAX},
                                      {"layers.0.attention.v.weight", SIZE_MAX}};
    safetensors_buffer* fused = nullptr;
    safetensors_error error{};
    (void)safetensors_weights_fuse(weights.get(), names, 2, nullptr, &fused, &error);
    REQUIRE(std::string(error.text).empty());
    kept.reset(safetensors_buffer_share(fused));
    safetensors_buffer_free(fused);
    const auto one = test::bytes_of(get(weights, names[0].data));
    const auto both = test::bytes_of(kept);
    for (int i = 0; i < 3; ++i) CHECK(both.sections[i] == 2 * one.sections[i]);
    CHECK(counting.live == 2);
    safetensors_weights_clear_cache(weights.get());
    CHECK(counting.live == 1);
    CHECK(counting.releases == 0);

    counting.is_full = true;
    safetensors_buffer* none = nullptr;
    CHECK(safetensors_weights_get(weights.get(), SAFETENSORS_TEXT("output.weight"), nullptr, &none,
                                  nullptr) == SAFETENSORS_OUT_OF_MEMORY);
    counting.is_full = false;
    counting.offset = 8;
    CHECK(safetensors_weights_get(weights.get(), SAFETENSORS_TEXT("output.weight"), nullptr, &none,
                                  &error) == SAFETENSORS_INVALID_ARGUMENT);
    CHECK(std::string(error.text).find("not aligned to 64 bytes") != std::string::npos);
    CHECK(none == nullptr);
    CHECK(counting.live == 1);
    counting.offset = 0;
  }
  CHECK(counting.releases == 0);  // a buffer outlives the model
  CHECK(test::bytes_of(kept).nbytes > 0);
  kept.reset();
  CHECK(counting.live == 0);
  CHECK(counting.releases == 1);

  // Released also if nothing is opened, but not if it is not taken.
  allocator = counting.allocator();
  CHECK(test::open_weights_code("nowhere", options) == SAFETENSORS_IO);
  CHECK(counting.releases == 2);
  options.flags = 1U << 30;
  CHECK(test::open_weights_code("nowhere", options) == SAFETENSORS_INVALID_ARGUMENT);
  CHECK(counting.releases == 3);
  allocator.allocate = nullptr;
  CHECK(test::open_weights_code("nowhere", options) == SAFETENSORS_INVALID_ARGUMENT);
  allocator = counting.allocator();
  allocator.size = 3;
  CHECK(test::open_weights_code("nowhere", options) == SAFETENSORS_INVALID_ARGUMENT);
  CHECK(counting.releases == 3);
}

TEST_CASE("C: many threads use one model") {
  const Weights weights = open_weights("mlx/llama_mixed");
  safetensors_weights_info info{};
  REQUIRE(safetensors_weights_look(weights.get(), &info, nullptr) == 0);
  std::atomic<int> faults{0};
  const auto use = [&] {
    for (std::size_t i = 0; i < info.count; ++i) {
      safetensors_weight found{};
      safetensors_part part{};
      safetensors_buffer* buffer = nullptr;
      if (safetensors_weights_at(weights.get(), i, &found, nullptr) != 0 ||
          safetensors_weights_find_source(weights.get(), found.source, found.source_size, &found,
                                          nullptr) != 0 ||
          safetensors_weights_part(weights.get(), found.name, found.name_size, 0, &part, nullptr) !=
              0 ||
          safetensors_weights_get(weights.get(), found.name, found.name_size, nullptr, &buffer,
                                  nullptr) != 0) {
        ++faults;
        continue;
      }
      safetensors_buffer_free(safetensors_buffer_share(buffer));
      safetensors_buffer_free(buffer);
    }
    std::size_t count = 0;
    if (safetensors_weights_list(weights.get(), SAFETENSORS_LIST_FILES, &count) == nullptr)
      ++faults;
    if (safetensors_weights_config_fields(&count) == nullptr || count < 50) ++faults;
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back(use);
  }
  CHECK(faults == 0);
}
