// Indexing gives the same result as indexing element by element.
#include "fuzz_input.hpp"
#include "region_oracle.hpp"
#include "safetensors/error.hpp"
#include "support.hpp"

namespace {

using safetensors::Index;
using safetensors::IndexEntry;

std::optional<std::int64_t> bound_of(fuzz::Input& input) {
  switch (input.below(8)) {
    case 0:
      return std::nullopt;
    case 1:
      return static_cast<std::int64_t>(input.word());
    default:
      return static_cast<std::int64_t>(input.below(24)) - 12;
  }
}

Index index_of(fuzz::Input& input) {
  switch (input.below(8)) {
    case 0:
      return Index::ellipsis();
    case 1:
      return Index::new_axis();
    case 2:
    case 3:
      return Index::at(bound_of(input).value_or(0));
    default: {
      const auto start = bound_of(input);
      const auto stop = bound_of(input);
      return Index::slice(start, stop, input.below(3) == 0 ? bound_of(input).value_or(1) : 1);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const safetensors::Dtype dtype = input.dtype();
  std::vector<std::uint64_t> shape(input.below(5));
  std::uint64_t nbits = safetensors::bit_size(dtype);
  for (std::uint64_t& axis : shape) nbits *= axis = input.below(9);
  if (nbits % 8 != 0) return 0;  // no file has such a tensor
  std::vector<Index> indices(input.below(6));
  for (Index& index : indices) index = index_of(input);
  const std::string difference = test::slice_difference(
      indices, shape, dtype, [](const auto& work) { return test::outcome_of(work); });
  fuzz::require(difference.empty(), "as element by element: " + difference);

  // Some of the indices become lists of themselves and others.
  std::vector<IndexEntry> entries(indices.begin(), indices.end());
  for (IndexEntry& entry : entries) {
    std::vector<Index> list(input.below(4));
    if (list.empty()) continue;
    list.front() = std::get<Index>(entry);
    for (std::size_t i = 1; i < list.size(); ++i) list[i] = index_of(input);
    entry = std::move(list);
  }
  const auto layout = static_cast<test::Layout>(input.below(3));
  const std::string of_region = test::region_difference(
      entries, shape, dtype, layout, [](const auto& work) { return test::outcome_of(work); });
  fuzz::require(of_region.empty(), "regions as element by element: " + of_region);
  return 0;
}
