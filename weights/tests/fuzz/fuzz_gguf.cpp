// A GGUF header is refused with an Error or is consistent, and the result does not depend on how
// its bytes arrive.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/utf8.hpp"
#include "dequant/ggml_types.hpp"
#include "fuzz_input.hpp"
#include "gguf/header.hpp"
#include "gguf_support.hpp"
#include "safetensors/weights/error.hpp"

namespace {

using safetensors::weights::GgufHeader;
using safetensors::weights::GgufInput;
using safetensors::weights::MetaArray;
using safetensors::weights::MetaValue;
using safetensors::weights::NeedsMore;
using safetensors::weights::parse_gguf_header;

/// The header, or the text of the Error.
struct Outcome {
  std::optional<GgufHeader> header;
  std::string error;
};

void walk(const MetaValue& value, unsigned depth) {
  fuzz::require(depth <= 4, "arrays are four deep at most");
  const int kinds = static_cast<int>(value.as_int64() || value.as_uint64()) +
                    static_cast<int>(value.as_float().has_value()) +
                    static_cast<int>(value.as_bool().has_value()) +
                    static_cast<int>(value.as_string().has_value()) +
                    static_cast<int>(value.as_array().has_value());
  fuzz::require(kinds == 1, "a value is of one kind");
  (void)value.is_utf8();
  if (const auto text = value.as_string()) (void)std::string(*text);
  const auto array = value.as_array();
  if (!array) return;
  std::uint64_t count = 0;
  for (const MetaValue element : *array) {
    fuzz::require(element.type() == array->element_type(), "elements are of one type");
    walk(element, depth + 1);
    ++count;
  }
  fuzz::require(count == array->size(), "as many elements as it says");
  const auto raw = array->raw();
  const auto size = byte_size(array->element_type());
  fuzz::require(raw.has_value() == size.has_value(), "numbers as bytes");
  if (raw) fuzz::require(raw->size() == count * *size, "bytes of all elements");
}

void check_tensors(const GgufHeader& header, std::uint64_t file_nbytes) {
  std::set<std::string_view> names;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& tensor : header.tensors) {
    fuzz::require(!tensor.name.empty() && tensor.name.size() <= 255 &&
                      tensor.name.find('\0') == std::string_view::npos &&
                      !safetensors::find_invalid_utf8(tensor.name),
                  "a name is a name");
    fuzz::require(names.insert(tensor.name).second, "names are different");
    const auto* const type = safetensors::weights::find_ggml_type(tensor.type);
    fuzz::require(type != nullptr, "a type of the table");
    __extension__ unsigned __int128 elements = 1;
    for (const std::int64_t dim : tensor.shape()) {
      fuzz::require(dim >= 0, "no negative dimension");
      elements *= static_cast<std::uint64_t>(dim);
    }
    fuzz::require(elements % type->block_elements == 0 &&
                      elements / type->block_elements * type->block_bytes == tensor.nbytes,
                  "bytes of shape and type");
    fuzz::require(tensor.offset >= header.data_begin && tensor.offset <= file_nbytes &&
                      tensor.nbytes <= file_nbytes - tensor.offset,
                  "all bytes are in the file");
    if (tensor.nbytes == 0) continue;
    fuzz::require((tensor.offset - header.data_begin) % header.alignment == 0, "aligned");
    ranges.emplace_back(tensor.offset, tensor.offset + tensor.nbytes);
  }
  std::ranges::sort(ranges);
  std::uint64_t end = header.data_begin;
  for (const auto& [begin, after] : ranges) {
    fuzz::require(begin >= end, "no overlap");
    fuzz::require(begin - end < header.alignment, "no hole");
    end = after;
  }
}

void check_accepted(const GgufHeader& header, std::uint64_t file_nbytes) {
  fuzz::require(header.version == 2 || header.version == 3, "a version that is read");
  fuzz::require(header.data_begin <= file_nbytes, "the header is in the file");
  std::set<std::string_view> keys;
  for (const auto& [key, value] : header.metadata) {
    fuzz::require(!key.empty() && !safetensors::find_invalid_utf8(key), "a key is a key");
    fuzz::require(keys.insert(key).second, "keys are different");
    fuzz::require(header.metadata.find(key) == &value, "found by its key");
    walk(value, 0);
  }
  check_tensors(header, file_nbytes);
}

/// Parses a file of which `at_hand` bytes are available at first. The rest arrives as it is
/// requested, or all at once.
Outcome parse(std::span<const std::byte> file, std::size_t at_hand, bool by_need) {
  GgufInput input{.available = {},
                  .file_nbytes = file.size(),
                  .path = "f",
                  .limits = {},
                  .allow_gaps = false,
                  .owner = nullptr};
  for (;;) {
    // Of exactly this size, so that a sanitizer detects reads past the available bytes.
    const auto exact = std::make_shared<std::vector<std::byte>>(
        file.begin(), file.begin() + static_cast<std::ptrdiff_t>(at_hand));
    exact->shrink_to_fit();
    input.available = *exact;
    input.owner = exact;
    try {
      auto parsed = parse_gguf_header(input);
      if (auto* const header = std::get_if<GgufHeader>(&parsed)) return {std::move(*header), {}};
      const std::uint64_t needed = std::get<NeedsMore>(parsed).nbytes;
      fuzz::require(needed > at_hand && needed <= file.size(), "it wants more, and what there is");
      at_hand = by_need ? static_cast<std::size_t>(needed) : file.size();
    } catch (const safetensors::weights::WeightsError& error) {
      const std::string text = error.what();
      fuzz::require(!safetensors::find_invalid_utf8(text), "errors are text");
      return {std::nullopt, text};
    }
  }
}

void check_same(const Outcome& a, const Outcome& b) {
  fuzz::require(a.error == b.error, "the same error: " + a.error + " and " + b.error);
  if (!a.header || !b.header) return;
  const std::string difference = test::gguf_difference(*a.header, *b.header);
  fuzz::require(difference.empty(), "the same header: " + difference);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const Outcome whole = parse(file, size, false);
  if (whole.header) check_accepted(*whole.header, size);
  // A byte of the file decides how much is available at first.
  const std::size_t any = size == 0 ? 0 : data[size / 2];
  check_same(whole, parse(file, any * (size + 1) / 256, false));
  // Each step parses again from the beginning, so that long files would take all of the time.
  if (any % 4 == 0 && size < 512) check_same(whole, parse(file, 0, true));
  return 0;
}
