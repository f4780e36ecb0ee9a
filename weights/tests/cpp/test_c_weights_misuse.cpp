// C: errors of the weight layer, watches, and hostile calls.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>

#include "c_weights_support.hpp"

using test::CBuffer;
using test::get;
using test::open_weights;
using test::Weights;

TEST_CASE("C: errors have a code, a fault, the file and the name") {
  const Weights weights = open_weights("mlx/llama_q4_g64_bf16");
  safetensors_error error{};
  safetensors_weight found{};
  CHECK(safetensors_weights_find(weights.get(), SAFETENSORS_TEXT("outputt.weight"), &found,
                                 &error) == SAFETENSORS_TENSOR_NOT_FOUND);
  CHECK(error.detail == SAFETENSORS_FAULT_UNKNOWN_TENSOR);
  CHECK(std::string(safetensors_fault_name(error.detail)) == "unknown_tensor");
  CHECK(std::string(error.text + error.subject) == "outputt.weight");
  CHECK(std::string(error.text + error.path).ends_with("llama_q4_g64_bf16"));
  CHECK(std::string(error.text).find("output.weight") != std::string::npos);
  CHECK(safetensors_weights_find_source(weights.get(), SAFETENSORS_TEXT("output.weight"), &found,
                                        &error) == SAFETENSORS_TENSOR_NOT_FOUND);
  safetensors_part part{};
  CHECK(safetensors_weights_part(weights.get(), SAFETENSORS_TEXT("output.weight"), 3, &part,
                                 &error) == SAFETENSORS_INDEX_OUT_OF_BOUNDS);
  CHECK(error.detail == 0);
  safetensors_buffer* buffer = nullptr;
  CHECK(safetensors_weights_get_part(weights.get(), SAFETENSORS_TEXT("output.weight"), 3, nullptr,
                                     &buffer, &error) == SAFETENSORS_INDEX_OUT_OF_BOUNDS);
  CHECK(error.detail == 0);
  CHECK(safetensors_weights_at(weights.get(), SIZE_MAX, &found, &error) ==
        SAFETENSORS_INDEX_OUT_OF_BOUNDS);
  const safetensors_text names[] = {{"output.weight", SIZE_MAX}, {"output_norm.weight", SIZE_MAX}};
  CHECK(safetensors_weights_fuse(weights.get(), names, 2, nullptr, &buffer, &error) ==
        SAFETENSORS_INVALID_ARGUMENT);
  CHECK(error.detail == SAFETENSORS_FAULT_MIXED_TYPES);
  float values[4];
  const auto decode = [&](std::int32_t dtype, void* to, std::uint64_t room) {
    return safetensors_weights_decode(weights.get(), SAFETENSORS_TEXT("output.weight"), 0, 1, dtype,
                                      to, room, nullptr, &error);
  };
  CHECK(decode(SAFETENSORS_F32, values, 16) == SAFETENSORS_INVALID_TENSOR_INFO);
  CHECK(error.detail == SAFETENSORS_FAULT_BAD_SHAPE);
  CHECK(decode(SAFETENSORS_F32, values, 15) == SAFETENSORS_INVALID_ARGUMENT);
  CHECK(decode(SAFETENSORS_F32, reinterpret_cast<char*>(values) + 2, 12) ==
        SAFETENSORS_INVALID_ARGUMENT);
  CHECK(decode(SAFETENSORS_F64, values, 16) == SAFETENSORS_UNSUPPORTED_DTYPE);
  CHECK(decode(-1, values, 16) == SAFETENSORS_UNSUPPORTED_DTYPE);
  CHECK(safetensors_fault_name(0) == nullptr);
  CHECK(safetensors_fault_name(21) == nullptr);

  for (const char* bad : {"bad/bad_magic.gguf", "bad/data_cut.gguf", "bad/mlx_no_scales"}) {
    CAPTURE(bad);
    CHECK(test::open_weights_code(bad, test::sized<safetensors_weights_options>(), &error) !=
          SAFETENSORS_OK);
    CHECK(safetensors_fault_name(error.detail) != nullptr);
    CHECK(std::string(error.text + error.path).find("bad/") != std::string::npos);
  }
  CHECK(test::open_weights_code("bad/mlx_index_missing", test::sized<safetensors_weights_options>(),
                                &error) == SAFETENSORS_INCOMPLETE_MODEL);
  CHECK(error.detail == SAFETENSORS_FAULT_MISSING_SHARD);
}

TEST_CASE("C: a watch ends a call with its number, and shows no progress") {
  const Weights weights = open_weights("mlx/llama_q4_g64_bf16");
  auto watch = test::sized<safetensors_watch>();
  watch.interrupt = [](void*) { return std::int32_t{77}; };
  safetensors_buffer* buffer = nullptr;
  safetensors_error error{};
  // Small weights are done before the first look at the watch, so only the struct's rules are seen.
  const std::int32_t code = safetensors_weights_get(
      weights.get(), SAFETENSORS_TEXT("output.weight"), &watch, &buffer, &error);
  CHECK((code == SAFETENSORS_OK || error.detail == 77));
  safetensors_buffer_free(buffer);
  watch.progress = [](void*, std::uint64_t, std::uint64_t) { return std::int32_t{0}; };
  CHECK(safetensors_weights_get(weights.get(), SAFETENSORS_TEXT("output.weight"), &watch, &buffer,
                                &error) == SAFETENSORS_INVALID_ARGUMENT);
  watch.size = 1;
  CHECK(safetensors_weights_get(weights.get(), SAFETENSORS_TEXT("output.weight"), &watch, &buffer,
                                &error) == SAFETENSORS_INVALID_ARGUMENT);
}

TEST_CASE("C: NULLs and empty texts over an address that must not be followed are refused") {
  const Weights open = open_weights("gguf/llama_q8_0.gguf");
  const char* const bad = reinterpret_cast<const char*>(1);
  constexpr std::int32_t kRefused = SAFETENSORS_INVALID_ARGUMENT;
  safetensors_weight w{};
  safetensors_part p{};
  safetensors_value v{};
  safetensors_weights_info info{};
  safetensors_bytes bytes{};
  safetensors_buffer* buffer = nullptr;
  safetensors_weights* weights = nullptr;
  std::int32_t format = 0;
  float f = 0;
  CHECK(safetensors_weights_open(bad, 0, nullptr, &weights, nullptr) == kRefused);
  CHECK(safetensors_weights_open(nullptr, 3, nullptr, &weights, nullptr) == kRefused);
  CHECK(safetensors_weights_open("a", 1, nullptr, nullptr, nullptr) == kRefused);
  CHECK(safetensors_weights_open("a\0b", 3, nullptr, &weights, nullptr) == kRefused);
  CHECK(safetensors_weights_detect("a", 1, nullptr, nullptr) == kRefused);
  CHECK(safetensors_weights_detect(bad, 0, &format, nullptr) == kRefused);
  safetensors_weights_close(nullptr);
  safetensors_weights_clear_cache(nullptr);
  safetensors_buffer_free(nullptr);
  CHECK(safetensors_buffer_share(nullptr) == nullptr);
  CHECK(safetensors_buffer_bytes(nullptr, &bytes, nullptr) == kRefused);
  const CBuffer good = get(open, "output_norm.weight");
  CHECK(safetensors_buffer_bytes(good.get(), nullptr, nullptr) == kRefused);
  std::size_t count = 7;
  CHECK(safetensors_weights_list(nullptr, SAFETENSORS_LIST_FILES, &count) == nullptr);
  CHECK(count == 0);
  for (const std::int32_t list : {-1, 4, INT32_MIN}) {
    CHECK(safetensors_weights_list(open.get(), list, nullptr) == nullptr);
  }
  for (safetensors_weights* const each : {static_cast<safetensors_weights*>(nullptr), open.get()}) {
    const bool is_open = each != nullptr;
    const std::int32_t unknown = is_open ? SAFETENSORS_TENSOR_NOT_FOUND : kRefused;
    CHECK(safetensors_weights_look(each, is_open ? nullptr : &info, nullptr) == kRefused);
    CHECK(safetensors_weights_at(each, 0, is_open ? nullptr : &w, nullptr) == kRefused);
    CHECK(safetensors_weights_find(each, nullptr, 4, &w, nullptr) == kRefused);
    CHECK(safetensors_weights_find(each, "a", 1, nullptr, nullptr) == kRefused);
    CHECK(safetensors_weights_find(each, bad, 0, &w, nullptr) == unknown);
    CHECK(safetensors_weights_find_source(each, "a", 1, nullptr, nullptr) == kRefused);
    CHECK(safetensors_weights_find_source(each, bad, 0, &w, nullptr) == unknown);
    CHECK(safetensors_weights_part(each, "a", 1, 0, nullptr, nullptr) == kRefused);
    CHECK(safetensors_weights_part(each, bad, 0, 0, &p, nullptr) == unknown);
    CHECK(safetensors_weights_config(each, "dim", 3, nullptr, nullptr) == kRefused);
    CHECK(safetensors_weights_config(each, bad, 0, &v, nullptr) == kRefused);
    CHECK(safetensors_weights_metadata(each, "a", 1, nullptr, nullptr) == kRefused);
    CHECK(safetensors_weights_metadata(each, bad, 0, &v, nullptr) == (is_open ? 0 : kRefused));
    CHECK(safetensors_weights_metadata_at(each, 0, nullptr, nullptr, nullptr) ==
          (is_open ? 0 : kRefused));
    CHECK(safetensors_weights_get(each, "a", 1, nullptr, nullptr, nullptr) == kRefused);
    CHECK(safetensors_weights_get(each, bad, 0, nullptr, &buffer, nullptr) == unknown);
    CHECK(safetensors_weights_get_stored(each, bad, 0, nullptr, &buffer, nullptr) == unknown);
    CHECK(safetensors_weights_get_part(each, bad, 0, 0, nullptr, &buffer, nullptr) == unknown);
    CHECK(safetensors_weights_fuse(each, nullptr, 2, nullptr, &buffer, nullptr) == kRefused);
    CHECK(safetensors_weights_fuse(each, nullptr, 0, nullptr, &buffer, nullptr) == kRefused);
    CHECK(safetensors_weights_decode(each, "a", 1, 0, 1, SAFETENSORS_F32, nullptr, 4, nullptr,
                                     nullptr) == kRefused);
    CHECK(safetensors_weights_decode(each, bad, 0, 0, 1, SAFETENSORS_F32, &f, 4, nullptr,
                                     nullptr) == unknown);
  }
  CHECK(buffer == nullptr);
  CHECK(weights == nullptr);
}
