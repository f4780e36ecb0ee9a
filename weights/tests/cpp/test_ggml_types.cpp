// The table of GGUF's storage types.
#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string_view>

#include "dequant/ggml_types.hpp"

using safetensors::weights::can_dequantize;
using safetensors::weights::find_ggml_type;
using safetensors::weights::GgmlType;
using safetensors::weights::withdrawn_ggml_type;

TEST_CASE("ggml types: numbers of withdrawn types, and unknown numbers, are no types") {
  const std::set<std::uint32_t> removed = {4, 5, 31, 32, 33, 36, 37, 38};
  for (std::uint32_t id = 0; id < 100; ++id) {
    const bool exists = id <= 42 && removed.count(id) == 0;
    CAPTURE(id);
    CHECK((find_ggml_type(id) != nullptr) == exists);
    CHECK(withdrawn_ggml_type(id).empty() == (removed.count(id) == 0));
    // ggml uses Q8_1 and Q8_K in computations and never stores them.
    CHECK(can_dequantize(id) == (exists && id != 9 && id != 15));
  }
  CHECK(withdrawn_ggml_type(4) == "Q4_2");
  CHECK(safetensors::weights::bitnet_type(36) == "I2_S");
  CHECK(safetensors::weights::bitnet_type(35).empty());  // ggml's own TQ2_0
  CHECK(find_ggml_type(0xFFFFFFFFU) == nullptr);
  CHECK_FALSE(can_dequantize(0xFFFFFFFFU));
}

TEST_CASE("ggml types: every row has its own number and name") {
  std::set<std::string_view> names;
  for (std::uint32_t id = 0; id <= 42; ++id) {
    const GgmlType* type = find_ggml_type(id);
    if (type == nullptr) continue;
    CHECK(type->id == id);
    CHECK(names.insert(type->name).second);
    CHECK(type->block_bytes <= std::uint64_t{type->block_elements} * 8);
  }
  CHECK(names.size() == 35);
}

TEST_CASE("ggml types: sizes of blocks") {
  struct Row {
    std::uint32_t id;
    std::string_view name;
    std::uint32_t elements;
    std::uint32_t nbytes;
  };
  for (const Row& row : {Row{2, "Q4_0", 32, 18}, Row{9, "Q8_1", 32, 36}, Row{14, "Q6_K", 256, 210},
                         Row{29, "IQ1_M", 256, 56}, Row{30, "BF16", 1, 2}, Row{40, "NVFP4", 64, 36},
                         Row{42, "Q2_0", 64, 18}}) {
    const GgmlType* type = find_ggml_type(row.id);
    REQUIRE(type != nullptr);
    CHECK(type->name == row.name);
    CHECK(type->block_elements == row.elements);
    CHECK(type->block_bytes == row.nbytes);
  }
}
