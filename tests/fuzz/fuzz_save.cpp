// Saved tensors are read back unchanged, and both ways of saving give the same bytes.
#include <algorithm>
#include <set>

#include "base/utf8.hpp"
#include "fuzz_input.hpp"
#include "roundtrip.hpp"
#include "safetensors/save.hpp"
#include "support.hpp"

namespace {

using safetensors::Dtype;
using safetensors::find_invalid_utf8;

test::OwnTensor tensor_of(fuzz::Input& input) {
  test::OwnTensor tensor;
  tensor.name = input.text(input.below(8));
  tensor.dtype = input.dtype();
  tensor.shape.resize(input.below(4));
  std::uint64_t nbits = safetensors::bit_size(tensor.dtype);
  for (std::uint64_t& axis : tensor.shape) {
    axis = input.below(6);
    nbits *= axis;
  }
  // Now and then a size that is wrong by a byte.
  const unsigned wrong = input.below(16);
  tensor.bytes = test::pattern(nbits / 8 + (wrong == 1 ? 1U : 0U), input.byte());
  return tensor;
}

/// Returns whether the format can hold these tensors.
bool is_good(const std::vector<test::OwnTensor>& tensors, const safetensors::Metadata& metadata) {
  std::set<std::string> names;
  for (const test::OwnTensor& tensor : tensors) {
    std::uint64_t nbits = safetensors::bit_size(tensor.dtype);
    for (const std::uint64_t axis : tensor.shape) nbits *= axis;
    if (nbits != 8 * tensor.bytes.size()) return false;
    if (tensor.name == "__metadata__" || find_invalid_utf8(tensor.name)) return false;
    if (!names.insert(tensor.name).second) return false;
  }
  return std::ranges::none_of(metadata, [](const auto& item) {
    return find_invalid_utf8(item.first) || find_invalid_utf8(item.second);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  safetensors::Metadata metadata;
  const bool has_metadata = input.below(2) == 0;
  for (unsigned count = has_metadata ? input.below(4) : 0; count > 0; --count) {
    const std::string key = input.text(input.below(6));
    metadata[key] = input.text(input.below(6));
  }
  std::vector<test::OwnTensor> tensors;
  for (unsigned count = input.below(8); count > 0; --count) tensors.push_back(tensor_of(input));

  std::string first;
  const std::string outcome = test::outcome_of([&] {
    const auto views = test::views_of(tensors);
    first =
        test::text_of(safetensors::serialize(views, has_metadata ? &metadata : nullptr).bytes());
  });
  fuzz::require((outcome == "ok") == is_good(tensors, metadata),
                "refused if and only if bad: " + outcome);
  if (outcome != "ok") return 0;

  const safetensors::ParsedBytes parsed = safetensors::parse_bytes(test::bytes_of(first));
  fuzz::require(parsed.header.size() == tensors.size(), "all tensors are there");
  fuzz::require(parsed.header.has_metadata() == has_metadata, "metadata, or none");
  fuzz::require(parsed.header.metadata().size() == metadata.size(), "all metadata is there");
  for (const auto& [key, value] : parsed.header.metadata()) {
    fuzz::require(metadata.at(std::string(key)) == value, "the same metadata");
  }
  for (const test::OwnTensor& tensor : tensors) {
    const safetensors::TensorInfo* const info = parsed.header.find(tensor.name);
    fuzz::require(
        info != nullptr && info->dtype == tensor.dtype &&
            std::ranges::equal(info->shape, tensor.shape) &&
            std::ranges::equal(parsed.data.subspan(info->begin, info->nbytes()), tensor.bytes),
        "the same tensor");
  }
  fuzz::require((first.size() - parsed.data.size()) % 8 == 0, "the data begins at a multiple of 8");
  std::ranges::reverse(tensors);
  const auto again =
      safetensors::serialize(test::views_of(tensors), has_metadata ? &metadata : nullptr);
  fuzz::require(test::text_of(again.bytes()) == first, "the order given does not matter");
  return 0;
}
