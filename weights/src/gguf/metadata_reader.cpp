#include "gguf/metadata_reader.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "base/utf8.hpp"
#include "gguf/metadata_access.hpp"

namespace safetensors::weights {
namespace {

constexpr std::uint64_t kMinString = 8;     // its length
constexpr std::uint64_t kMinArray = 4 + 8;  // its type and count

/// Returns the least number of bytes that a value takes.
std::uint64_t min_size(MetaType type) noexcept {
  if (const auto size = byte_size(type)) return *size;
  return type == MetaType::string ? kMinString : kMinArray;
}

MetaType read_type(Cursor& cursor) {
  const std::uint64_t at = cursor.position();
  const auto number = cursor.number<std::uint32_t>();
  if (number > static_cast<std::uint32_t>(MetaType::f64)) {
    cursor.fail_at(at, Errc::bad_type, "its value type " + std::to_string(number) + " is unknown");
  }
  return static_cast<MetaType>(number);
}

void check_bools(const Cursor& cursor, std::span<const std::byte> bytes) {
  // A bitwise or of all bytes vectorises; only a bad array is searched.
  std::byte any{0};
  for (const std::byte byte : bytes) any |= byte;
  if (any <= std::byte{1}) return;
  const auto bad = std::ranges::find_if(bytes, [](std::byte byte) { return byte > std::byte{1}; });
  cursor.fail_at(cursor.position_of(&*bad), Errc::bad_type,
                 "a bool has the value " + std::to_string(std::to_integer<int>(*bad)));
}

/// Reads an array by walking to its end. Recurses to `max_depth` at most.
MetaValue read_array(Cursor& cursor, std::uint32_t depth, std::uint32_t max_depth) {
  const std::uint64_t at = cursor.position();
  if (depth > max_depth) {
    cursor.fail_at(at, Errc::limit,
                   "more than " + std::to_string(max_depth) + " levels of arrays in arrays");
  }
  const MetaType type = read_type(cursor);
  const auto count = cursor.number<std::uint64_t>();
  if (count > cursor.remaining() / min_size(type)) {
    cursor.fail_at(at, Errc::truncated,
                   "an array of " + grouped(count) + " elements of type " +
                       std::string(name(type)) + " cannot fit into the " +
                       grouped(cursor.remaining()) + " bytes that the file still has");
  }
  if (const auto size = byte_size(type)) {
    const auto bytes = cursor.take(count * *size);
    if (type == MetaType::boolean) check_bools(cursor, bytes);
    return MetaAccess::array(type, count, bytes);
  }
  const auto start = cursor.take(0);
  if (type == MetaType::string) {
    cursor.skip_strings(count);
  } else {
    for (std::uint64_t i = 0; i < count; ++i) (void)read_array(cursor, depth + 1, max_depth);
  }
  const std::uint64_t nbytes = cursor.position() - cursor.position_of(start.data());
  return MetaAccess::array(type, count, {start.data(), static_cast<std::size_t>(nbytes)});
}

MetaValue read_value(Cursor& cursor, std::uint32_t max_depth) {
  const MetaType type = read_type(cursor);
  if (type == MetaType::array) return read_array(cursor, 1, max_depth);
  const std::uint64_t nbytes =
      type == MetaType::string ? cursor.number<std::uint64_t>() : min_size(type);
  const auto bytes = cursor.take(nbytes);
  if (type == MetaType::boolean) check_bools(cursor, bytes);
  return MetaAccess::value(type, bytes);
}

}  // namespace

std::string_view read_gguf_name(Cursor& cursor, std::uint64_t max_nbytes, std::string_view what) {
  const std::uint64_t at = cursor.position();
  const auto nbytes = cursor.number<std::uint64_t>();
  if (nbytes == 0 || nbytes > max_nbytes) {
    cursor.fail_at(at, Errc::bad_name,
                   std::string(what) + " has " + grouped(nbytes) + " bytes, it must have 1 to " +
                       grouped(max_nbytes));
  }
  const std::string_view text = cursor.take_text(nbytes);
  if (text.find('\0') != std::string_view::npos) {
    cursor.fail_at(at, Errc::bad_name, std::string(what) + " contains a NUL");
  }
  if (const auto invalid = find_invalid_utf8(text)) {
    cursor.fail_at(at, Errc::bad_name,
                   std::string(what) + " is not UTF-8 from its byte " +
                       std::to_string(invalid->offset) + " on");
  }
  return text;
}

std::vector<ModelMetadata::Item> read_gguf_items(Cursor& cursor, std::uint64_t count,
                                                 const Limits& limits) {
  const std::uint32_t max_depth = std::min(limits.array_depth, MetaAccess::kMaxDepth);
  std::vector<ModelMetadata::Item> items;
  for (std::uint64_t i = 0; i < count; ++i) {
    cursor.set_subject({});
    const std::string_view key = read_gguf_name(cursor, limits.key_nbytes, "a metadata key");
    cursor.set_subject(key);
    items.push_back({key, read_value(cursor, max_depth)});
  }
  cursor.set_subject({});
  return items;
}

}  // namespace safetensors::weights
