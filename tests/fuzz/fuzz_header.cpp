// A file is refused with an Error, or has the same tensors when written again. The fast reader of
// headers and the C interface give the same result.
#include "base/utf8.hpp"
#include "format/header_reader.hpp"
#include "fuzz_input.hpp"
#include "roundtrip.hpp"
#include "safetensors/header.hpp"
#include "safetensors/safetensors.h"

namespace {

using safetensors::Header;
using safetensors::ParsedBytes;
using safetensors::TensorInfo;

/// Returns how two headers differ; empty if they do not.
std::string header_difference(const Header& a, const Header& b) {
  if (a.size() != b.size()) return "the number of tensors";
  for (std::size_t i = 0; i < a.size(); ++i) {
    const TensorInfo& one = a.tensors()[i];
    const TensorInfo& two = b.tensors()[i];
    if (one.name != two.name || one.dtype != two.dtype || one.begin != two.begin ||
        one.end != two.end || !std::ranges::equal(one.shape, two.shape)) {
      return "a tensor";
    }
  }
  if (a.has_metadata() != b.has_metadata()) return "metadata, or none";
  return std::ranges::equal(a.metadata(), b.metadata()) ? "" : "metadata";
}

/// Checks that the complete reader gives the same result as Header::parse.
void check_readers(std::string_view json, std::uint64_t data_nbytes, const Header* parsed,
                   int code) {
  if (safetensors::find_invalid_utf8(json) || !json.starts_with('{')) return;
  const std::size_t nbytes = json.size();
  json.remove_suffix(nbytes - 1 - json.find_last_not_of(' '));
  if (!json.ends_with('}')) return;
  try {
    safetensors::HeaderBuilder builder(nbytes);
    safetensors::read_header(json, builder);
    const Header header = std::move(builder).finish(data_nbytes);
    fuzz::require(parsed != nullptr, "accepted by the JSON reader only");
    const std::string difference = header_difference(*parsed, header);
    fuzz::require(difference.empty(), "the two readers agree: " + difference);
  } catch (const safetensors::Error& error) {
    fuzz::require(static_cast<int>(error.code()) == code, "the two readers refuse alike");
  }
}

/// Checks that the C interface gives the same result as the C++ interface.
void check_c(std::span<const std::byte> file, const ParsedBytes* parsed, int code) {
  safetensors_file* opened = nullptr;
  safetensors_error error{};
  const int result = safetensors_open_memory(file.data(), file.size(), &opened, &error);
  fuzz::require(result == code && error.code == code, "the C interface gives the same code");
  fuzz::require((error.text[0] == '\0') == (code == 0), "a text if and only if an error");
  if (parsed == nullptr) return;
  const auto& header = parsed->header;
  fuzz::require(safetensors_count(opened) == header.size(), "as many tensors in C");
  for (std::size_t i = 0; i < header.size(); ++i) {
    const TensorInfo& info = header.tensors()[i];
    safetensors_tensor tensor{};
    fuzz::require(safetensors_at(opened, i, &tensor, nullptr) == 0, "every tensor in C");
    fuzz::require(std::string_view(tensor.name, tensor.name_size) == info.name &&
                      tensor.dtype == static_cast<int>(info.dtype) && tensor.begin == info.begin &&
                      tensor.nbytes == info.nbytes() &&
                      std::ranges::equal(std::span(tensor.shape, tensor.rank), info.shape),
                  "the same tensor in C");
    fuzz::require(tensor.nbytes == 0 || tensor.data == parsed->data.data() + info.begin,
                  "the same bytes in C");
  }
  safetensors_file_info info{};
  fuzz::require(safetensors_file_at(opened, 0, &info, nullptr) == 0 &&
                    info.metadata_count == header.metadata().size(),
                "metadata in C");
  safetensors_close(opened);
}

void check(std::span<const std::byte> file) {
  const auto header_text = [&] {
    std::uint64_t length = 0;
    for (unsigned i = 0; i < 8; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
    const auto json = file.subspan(8, static_cast<std::size_t>(length));
    return std::string_view(reinterpret_cast<const char*>(json.data()), json.size());
  };
  try {
    const safetensors::ParsedBytes parsed = safetensors::parse_bytes(file);
    check_readers(header_text(), parsed.data.size(), &parsed.header, 0);
    check_c(file, &parsed, 0);
    const std::string difference = test::roundtrip_difference(parsed);
    fuzz::require(difference.empty(), "the same when written again: " + difference);
    std::uint64_t position = 0;
    for (const safetensors::TensorInfo& info : parsed.header.tensors()) {
      fuzz::require(info.begin == position, "no hole and no overlap");
      position = info.end;
      fuzz::require(parsed.header.find(info.name) == &info, "found by its name");
    }
    fuzz::require(position == parsed.data.size(), "all of the data is tensors'");
    const std::vector<const safetensors::TensorInfo*> sorted = parsed.header.sorted_by_name();
    fuzz::require(sorted.size() == parsed.header.size(), "sorted is all");
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      fuzz::require(sorted[i - 1]->name < sorted[i]->name, "sorted by name");
    }
  } catch (const safetensors::Error& error) {
    using safetensors::ErrorCode;
    const int code = static_cast<int>(error.code());
    check_c(file, nullptr, code);
    // The others are about the length.
    if (error.code() != ErrorCode::kHeaderTooSmall && error.code() != ErrorCode::kHeaderTooLarge &&
        error.code() != ErrorCode::kInvalidHeaderLength) {
      const std::string_view json = header_text();
      check_readers(json, file.size() - 8 - json.size(), nullptr, code);
    }
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
