// C: models whose files the program opens, while each allocation fails.
#include <doctest/doctest.h>

#include <new>
#include <string>
#include <vector>

#include "c_sources.hpp"
#include "c_weights_support.hpp"
#include "faults.hpp"

using faults::MemoryFile;
using faults::MemoryFiles;

TEST_CASE("C: a model's source and its allocator are released once if any allocation fails") {
  struct Counts {
    int live = 0;
    int releases = 0;
  } counts;
  auto allocator = test::sized<safetensors_allocator>();
  allocator.context = &counts;
  allocator.allocate = [](void* context, std::size_t nbytes) -> void* {
    ++static_cast<Counts*>(context)->live;
    return std::aligned_alloc(64, (nbytes + 63) / 64 * 64);
  };
  allocator.deallocate = [](void* context, void* memory, std::size_t) {
    --static_cast<Counts*>(context)->live;
    std::free(memory);
  };
  allocator.release = [](void* context) { ++static_cast<Counts*>(context)->releases; };
  auto options = test::sized<safetensors_weights_options>();
  options.allocator = &allocator;

  for (const auto& [room, names] :
       {std::pair<const char*, std::vector<std::string>>{"gguf", {"llama_q8_0.gguf"}},
        {"gguf",
         {"llama_split_q4_0-00001-of-00003.gguf", "llama_split_q4_0-00002-of-00003.gguf",
          "llama_split_q4_0-00003-of-00003.gguf"}},
        {"mlx/llama_sharded",
         {"config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
          "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"}},
        {"schemes/awq", {"config.json", "model.safetensors"}}}) {
    CAPTURE(room);
    std::vector<MemoryFile> files;
    for (const std::string& name : names) {
      files.push_back({name, test::read_text(test::fs::path(test::model_path(room)) / name)});
    }
    MemoryFiles folder(std::move(files));
    std::vector<float> row(10'000);
    std::int32_t code = SAFETENSORS_OK;
    const auto work = [&] {
      counts = {};
      const safetensors_model_source source = folder.source();
      safetensors_weights* model = nullptr;
      safetensors_weight weight{};
      code = safetensors_weights_open_source(&source, SAFETENSORS_TEXT("label"), &options, &model,
                                             nullptr);
      if (code == 0) code = safetensors_weights_at(model, 0, &weight, nullptr);
      if (code == 0) {
        code = safetensors_weights_decode(
            model, weight.name, weight.name_size, 0, 1, SAFETENSORS_F32, row.data(),
            4 * static_cast<std::uint64_t>(weight.shape[weight.rank - 1]), nullptr, nullptr);
      }
      safetensors_buffer* buffer = nullptr;
      if (code == 0) {
        code = safetensors_weights_get(model, weight.name, weight.name_size, nullptr, &buffer,
                                       nullptr);
      }
      safetensors_weights_close(model);
      safetensors_buffer_free(buffer);
      if (code != SAFETENSORS_OK) throw std::bad_alloc();
      return std::string();
    };
    const auto check = [&](const faults::Outcome&) {
      CHECK((code == SAFETENSORS_OK || code == SAFETENSORS_OUT_OF_MEMORY));
      CHECK(folder.are_released());
      CHECK(counts.releases == 1);
      CHECK(counts.live == 0);
    };
    CHECK(faults::fail_each_allocation([] {}, work, check) > 100);
  }
}
