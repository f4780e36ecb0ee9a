#include "dequant/ggml_types.hpp"

#include <algorithm>
#include <array>
#include <functional>

#include "dequant/kernels.hpp"

namespace safetensors::weights {
namespace {

#define SAFETENSORS_ROW(id, name, elements, nbytes, kernel) GgmlType{id, #name, elements, nbytes},
constexpr std::array kTypes{SAFETENSORS_GGML_TYPES(SAFETENSORS_ROW)};
#undef SAFETENSORS_ROW

static_assert(std::ranges::adjacent_find(kTypes, std::ranges::greater_equal{}, &GgmlType::id) ==
                  kTypes.end(),
              "rows are in the order of their numbers, each of which stands for one type");
static_assert(kTypes.back().id + 1 == ggml::kEnd);

struct Withdrawn {
  std::uint32_t id;
  std::string_view name;
};
// Early formats, and weights that were rearranged for one family of processors, which ggml now
// does when it loads a file.
constexpr std::array<Withdrawn, 8> kWithdrawn{{{4, "Q4_2"},
                                               {5, "Q4_3"},
                                               {31, "Q4_0_4_4"},
                                               {32, "Q4_0_4_8"},
                                               {33, "Q4_0_8_8"},
                                               {36, "IQ4_NL_4_4"},
                                               {37, "IQ4_NL_4_8"},
                                               {38, "IQ4_NL_8_8"}}};
constexpr std::array<Withdrawn, 3> kBitnet{{{36, "I2_S"}, {37, "I8_S"}, {38, "TL1"}}};

template <typename Table>
std::string_view name_in(const Table& table, std::uint32_t id) noexcept {
  const auto found = std::ranges::find(table, id, &Withdrawn::id);
  return found == table.end() ? std::string_view() : found->name;
}

}  // namespace

const GgmlType* find_ggml_type(std::uint32_t id) noexcept {
  const auto found = std::ranges::find(kTypes, id, &GgmlType::id);
  return found == kTypes.end() ? nullptr : &*found;
}

std::string_view withdrawn_ggml_type(std::uint32_t id) noexcept { return name_in(kWithdrawn, id); }

std::string_view bitnet_type(std::uint32_t id) noexcept { return name_in(kBitnet, id); }

bool can_dequantize(std::uint32_t id) noexcept {
  return id < ggml::kEnd && kBaselineKernels.blocks[id] != nullptr;
}

}  // namespace safetensors::weights
