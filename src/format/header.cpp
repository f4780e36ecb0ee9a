#include "safetensors/header.hpp"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <string>

#include "base/little_endian.hpp"
#include "base/name_suggestions.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "format/header_builder.hpp"
#include "format/header_reader.hpp"
#include "format/name_order.hpp"
#include "format/plain_reader.hpp"
#include "format/prologue.hpp"
#include "safetensors/error.hpp"
#include "safetensors/file_kind.hpp"

namespace safetensors {
namespace {

// The bit of the header's length that is set while a file is changed in place (docs/format.md,
// "Changes in place"). No reader of the format accepts a header of that length.
constexpr std::uint64_t kChangeMark = std::uint64_t{1} << 63;

std::string_view as_text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Header::Header(Header&&) noexcept = default;
Header& Header::operator=(Header&&) noexcept = default;
Header::~Header() = default;

Header Header::parse(std::span<const std::byte> json, std::uint64_t data_nbytes) {
  if (json.size() > kMaxHeaderSize) {
    fail(ErrorCode::kHeaderTooLarge, "header too large: " + grouped(json.size()) +
                                         " bytes, at most " + grouped(kMaxHeaderSize));
  }
  std::string_view text = as_text(json);
  if (const auto invalid = find_invalid_utf8(text)) {
    const std::string from = " from index " + std::to_string(invalid->offset);
    fail(ErrorCode::kInvalidHeaderUtf8,
         "invalid UTF-8 in header: " +
             (invalid->nbytes == 0 ? "incomplete utf-8 byte sequence" + from
                                   : "invalid utf-8 sequence of " +
                                         std::to_string(invalid->nbytes) + " bytes" + from));
  }
  if (!text.starts_with('{')) {
    fail(ErrorCode::kInvalidHeaderJson, text.empty()
                                            ? "invalid JSON in header: the header is empty"
                                            : "invalid JSON in header: it does not begin with `{`");
  }
  text.remove_suffix(text.size() - 1 - text.find_last_not_of(' '));
  if (!text.ends_with('}')) {  // the reader would skip other white space
    fail(ErrorCode::kInvalidHeaderJson,
         "invalid JSON in header: it does not end with `}` and spaces");
  }
  HeaderBuilder builder(json.size());
  if (!format::read_plain_header(text, builder)) {
    builder = HeaderBuilder(json.size());
    read_header(text, builder);
  }
  return std::move(builder).finish(data_nbytes);
}

std::vector<const TensorInfo*> Header::sorted_by_name() const {
  std::vector<const TensorInfo*> sorted;
  sorted.reserve(tensors_.size());
  for (const TensorInfo& info : tensors_) sorted.push_back(&info);
  format::sort_by_name(sorted);
  return sorted;
}

const TensorInfo& Header::at(std::string_view name) const {
  if (const TensorInfo* const info = find(name)) return *info;
  fail(ErrorCode::kTensorNotFound,
       "File does not contain tensor " + std::string(name) +
           name_suggestions(name, tensors() | std::views::transform(&TensorInfo::name)),
       {.subject = std::string(name)});
}

std::optional<std::string_view> Header::find_metadata(std::string_view key) const noexcept {
  for (const auto& [each, value] : metadata_) {
    if (each == key) return value;
  }
  return std::nullopt;
}

namespace format {

std::uint64_t read_header_length(std::span<const std::byte> start, std::uint64_t file_nbytes) {
  const auto hint = [&] { return foreign_file_hint(start); };
  if (file_nbytes < kLengthSize) {
    fail(ErrorCode::kHeaderTooSmall,
         "header too small: a file begins with 8 bytes of header length, this one has " +
             counted(file_nbytes, "byte") + hint());
  }
  const auto length = load_little<std::uint64_t>(start.data());
  if (length > kMaxHeaderSize) {
    const std::uint64_t unmarked = length & ~kChangeMark;
    if (unmarked != length && unmarked <= std::min(kMaxHeaderSize, file_nbytes - kLengthSize)) {
      fail(
          ErrorCode::kHeaderTooLarge,
          "header too large: the file is marked because a change in place has not ended; if it was "
          "interrupted, `safetensors recover` completes it");
    }
    fail(ErrorCode::kHeaderTooLarge, "header too large: the first 8 bytes say " + grouped(length) +
                                         " bytes, at most " + grouped(kMaxHeaderSize) +
                                         " are allowed" + hint());
  }
  if (length > file_nbytes - kLengthSize) {
    const std::string kind = hint();
    fail(ErrorCode::kInvalidHeaderLength,
         "invalid header length: expects at least " + grouped(kLengthSize + length) +
             " bytes, has " + grouped(file_nbytes) + (kind.empty() ? ": truncated?" : kind));
  }
  return length;
}

}  // namespace format

std::uint64_t header_length(std::span<const std::byte> start, std::uint64_t file_nbytes) {
  if (start.size() < std::min<std::uint64_t>(kLengthSize, file_nbytes)) {
    fail(ErrorCode::kHeaderTooSmall,
         "header too small: a file begins with 8 bytes of header "
         "length, here are " +
             std::to_string(start.size()) + " of them");
  }
  return format::read_header_length(start.first(std::min(start.size(), format::kStartSize)),
                                    file_nbytes);
}

ParsedBytes parse_bytes(std::span<const std::byte> file) {
  try {
    const std::uint64_t length = format::read_header_length(
        file.first(std::min(file.size(), format::kStartSize)), file.size());
    const auto data = file.subspan(static_cast<std::size_t>(kLengthSize + length));
    return {Header::parse(file.subspan(kLengthSize, static_cast<std::size_t>(length)), data.size()),
            data};
  } catch (const Error& error) {
    throw error.with_context("Error while deserializing: ");
  }
}

}  // namespace safetensors
