// A file is refused with an Error, or is the same tensors when written again.
#include "format/utf8.hpp"
#include "fuzz_input.hpp"
#include "roundtrip.hpp"
#include "safetensors/header.hpp"
#include "two_readers.hpp"

namespace {

/// Where the short way through a header finishes, it agrees with the JSON reader. Both are given
/// what passed the checks that come before them.
void check_readers(std::span<const std::byte> file) {
  if (file.size() < 8) return;
  const std::string json(reinterpret_cast<const char*>(file.data()) + 8, file.size() - 8);
  const std::string text = json.substr(0, json.rfind('}') + 1);
  if (!text.starts_with('{') || safetensors::format::find_invalid_utf8(text)) return;
  const std::uint64_t data_nbytes = json.size() - text.size();
  const std::string found = test::plain(text, data_nbytes);
  if (found == "not plain") return;
  fuzz::require(found == test::by_the_reader(text, data_nbytes), "both ways agree: " + found);
}

void check(std::span<const std::byte> file) {
  check_readers(file);
  try {
    const safetensors::ParsedBytes parsed = safetensors::parse_bytes(file);
    const std::string difference = test::roundtrip_difference(parsed);
    fuzz::require(difference.empty(), "the same when written again: " + difference);
    std::uint64_t position = 0;
    for (const safetensors::TensorInfo& info : parsed.header.tensors()) {
      fuzz::require(info.begin == position, "no hole and no overlap");
      position = info.end;
      fuzz::require(parsed.header.find(info.name) == &info, "found by its name");
    }
    fuzz::require(position == parsed.data.size(), "all of the data is tensors'");
    fuzz::require(parsed.header.sorted_by_name().size() == parsed.header.size(), "sorted is all");
  } catch (const safetensors::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  check(input);
  // The length field is hard to guess: also take the input for header and some data.
  if (size > 1) {
    const std::size_t data_nbytes = std::min<std::size_t>(data[0], size - 1);
    const std::size_t header_nbytes = size - 1 - data_nbytes;
    std::vector<std::byte> file(8);
    for (unsigned i = 0; i < 8; ++i) {
      file[i] = static_cast<std::byte>(std::uint64_t{header_nbytes} >> (8 * i) & 0xFF);
    }
    file.insert(file.end(), input.begin() + 1, input.end());
    check(file);
  }
  return 0;
}
