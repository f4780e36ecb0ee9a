#include "safetensors/weights/metadata.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/little_endian.hpp"
#include "base/utf8.hpp"
#include "common/name_index.hpp"
#include "gguf/metadata_access.hpp"

namespace safetensors::weights {
namespace {

/// An integer of any type: its 64 bits, and whether they stand for a negative number.
struct Integer {
  std::uint64_t bits;
  bool is_negative;
};

template <typename T>
Integer integer_at(const std::byte* at) noexcept {
  const T value = load_little<T>(at);
  return {static_cast<std::uint64_t>(value), value < T{0}};
}

std::optional<Integer> integer_of(MetaType type, const std::byte* at) noexcept {
  switch (type) {
    case MetaType::u8:
      return integer_at<std::uint8_t>(at);
    case MetaType::i8:
      return integer_at<std::int8_t>(at);
    case MetaType::u16:
      return integer_at<std::uint16_t>(at);
    case MetaType::i16:
      return integer_at<std::int16_t>(at);
    case MetaType::u32:
      return integer_at<std::uint32_t>(at);
    case MetaType::i32:
      return integer_at<std::int32_t>(at);
    case MetaType::u64:
      return integer_at<std::uint64_t>(at);
    case MetaType::i64:
      return integer_at<std::int64_t>(at);
    case MetaType::f32:
    case MetaType::boolean:
    case MetaType::string:
    case MetaType::array:
    case MetaType::f64:
      break;
  }
  return std::nullopt;
}

std::string_view as_text(const std::byte* data, std::uint64_t nbytes) noexcept {
  return {reinterpret_cast<const char*>(data), static_cast<std::size_t>(nbytes)};
}

constexpr std::size_t kLengthBytes = 8;     // before a string
constexpr std::size_t kArrayStart = 4 + 8;  // element type and count, before an array

/// Returns the end of `count` elements that begin at `at`. Recurses for arrays of arrays, whose
/// depth was checked when the file was read (MetaAccess::kMaxDepth).
const std::byte* after_elements(MetaType type, std::uint64_t count, const std::byte* at) noexcept {
  if (const auto size = byte_size(type)) return at + count * *size;
  for (; count != 0; --count) {
    if (type == MetaType::string) {
      at += kLengthBytes + load_little<std::uint64_t>(at);
    } else {
      const auto inner = static_cast<MetaType>(load_little<std::uint32_t>(at));
      at = after_elements(inner, load_little<std::uint64_t>(at + 4), at + kArrayStart);
    }
  }
  return at;
}

std::span<const std::byte> between(const std::byte* begin, const std::byte* end) noexcept {
  return {begin, static_cast<std::size_t>(end - begin)};
}

}  // namespace

std::string_view name(MetaType type) noexcept {
  switch (type) {
    case MetaType::u8:
      return "u8";
    case MetaType::i8:
      return "i8";
    case MetaType::u16:
      return "u16";
    case MetaType::i16:
      return "i16";
    case MetaType::u32:
      return "u32";
    case MetaType::i32:
      return "i32";
    case MetaType::f32:
      return "f32";
    case MetaType::boolean:
      return "bool";
    case MetaType::string:
      return "string";
    case MetaType::array:
      return "array";
    case MetaType::u64:
      return "u64";
    case MetaType::i64:
      return "i64";
    case MetaType::f64:
      return "f64";
  }
  return "unknown";
}

std::optional<std::size_t> byte_size(MetaType type) noexcept {
  switch (type) {
    case MetaType::u8:
    case MetaType::i8:
    case MetaType::boolean:
      return 1;
    case MetaType::u16:
    case MetaType::i16:
      return 2;
    case MetaType::u32:
    case MetaType::i32:
    case MetaType::f32:
      return 4;
    case MetaType::u64:
    case MetaType::i64:
    case MetaType::f64:
      return 8;
    case MetaType::string:
    case MetaType::array:
      break;
  }
  return std::nullopt;
}

std::optional<std::int64_t> MetaValue::as_int64() const noexcept {
  const auto integer = integer_of(type_, data_);
  if (!integer) return std::nullopt;
  // Fits if the sign survives: a u64 from 2^63 on becomes negative here.
  const auto value = static_cast<std::int64_t>(integer->bits);
  if ((value < 0) != integer->is_negative) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> MetaValue::as_uint64() const noexcept {
  const auto integer = integer_of(type_, data_);
  if (!integer || integer->is_negative) return std::nullopt;
  return integer->bits;
}

std::optional<double> MetaValue::as_float() const noexcept {
  if (type_ == MetaType::f32) return double{load_little<float>(data_)};
  if (type_ == MetaType::f64) return load_little<double>(data_);
  return std::nullopt;
}

std::optional<bool> MetaValue::as_bool() const noexcept {
  if (type_ != MetaType::boolean) return std::nullopt;
  return *data_ != std::byte{0};
}

std::optional<std::string_view> MetaValue::as_string() const noexcept {
  if (type_ != MetaType::string) return std::nullopt;
  return as_text(data_, nbytes_);
}

std::optional<MetaArray> MetaValue::as_array() const noexcept {
  if (type_ != MetaType::array) return std::nullopt;
  MetaArray array;
  array.data_ = data_;
  array.nbytes_ = nbytes_;
  array.count_ = count_;
  array.element_type_ = element_type_;
  return array;
}

bool MetaValue::is_utf8() const noexcept {
  return type_ == MetaType::string && !find_invalid_utf8(as_text(data_, nbytes_));
}

bool MetaValue::equals(const MetaValue& other) const noexcept {
  return type_ == other.type_ && element_type_ == other.element_type_ && count_ == other.count_ &&
         as_text(data_, nbytes_) == as_text(other.data_, other.nbytes_);
}

MetaArray::iterator MetaArray::begin() const noexcept {
  iterator first;
  first.at_ = data_;
  first.left_ = count_;
  first.type_ = element_type_;
  return first;
}

MetaArray::iterator MetaArray::end() const noexcept { return {}; }

std::optional<std::span<const std::byte>> MetaArray::raw() const noexcept {
  if (!byte_size(element_type_)) return std::nullopt;
  return std::span(data_, static_cast<std::size_t>(nbytes_));
}

MetaValue MetaArray::iterator::operator*() const noexcept {
  const std::byte* const end = after_elements(type_, 1, at_);
  if (type_ == MetaType::string) return MetaAccess::value(type_, between(at_ + kLengthBytes, end));
  if (type_ != MetaType::array) return MetaAccess::value(type_, between(at_, end));
  return MetaAccess::array(static_cast<MetaType>(load_little<std::uint32_t>(at_)),
                           load_little<std::uint64_t>(at_ + 4), between(at_ + kArrayStart, end));
}

MetaArray::iterator& MetaArray::iterator::operator++() noexcept {
  at_ = after_elements(type_, 1, at_);
  --left_;
  return *this;
}

MetaValue MetaAccess::value(MetaType type, std::span<const std::byte> bytes) noexcept {
  MetaValue made;
  made.data_ = bytes.data();
  made.nbytes_ = bytes.size();
  made.type_ = type;
  return made;
}

MetaValue MetaAccess::array(MetaType element_type, std::uint64_t count,
                            std::span<const std::byte> bytes) noexcept {
  MetaValue made = value(MetaType::array, bytes);
  made.count_ = count;
  made.element_type_ = element_type;
  return made;
}

struct ModelMetadata::Table {
  [[nodiscard]] auto keys() const noexcept {
    return [this](std::size_t i) { return items[i].key; };
  }

  std::shared_ptr<const void> owner;  // of the bytes that the items view
  std::vector<Item> items;
  NameIndex index;
};

ModelMetadata::ModelMetadata() noexcept = default;
ModelMetadata::ModelMetadata(std::shared_ptr<const Table> table) noexcept
    : table_(std::move(table)) {}
ModelMetadata::ModelMetadata(const ModelMetadata&) noexcept = default;
ModelMetadata::ModelMetadata(ModelMetadata&&) noexcept = default;
ModelMetadata& ModelMetadata::operator=(const ModelMetadata&) noexcept = default;
ModelMetadata& ModelMetadata::operator=(ModelMetadata&&) noexcept = default;
ModelMetadata::~ModelMetadata() = default;

std::span<const ModelMetadata::Item> ModelMetadata::items() const noexcept {
  if (!table_) return {};
  return table_->items;
}

const MetaValue* ModelMetadata::find(std::string_view key) const noexcept {
  if (!table_) return nullptr;
  const auto at = table_->index.find(key, table_->keys());
  return at ? &table_->items[*at].value : nullptr;
}

MetaAccess::Made MetaAccess::table(std::shared_ptr<const void> owner,
                                   std::vector<ModelMetadata::Item> items) {
  const auto table = std::make_shared<ModelMetadata::Table>();
  table->owner = std::move(owner);
  table->items = std::move(items);
  const auto twice = table->index.build(table->items.size(), table->keys());
  return {ModelMetadata(table), twice};
}

ModelMetadata ModelMetadata::of_strings(
    std::span<const std::pair<std::string_view, std::string_view>> items) {
  std::size_t nbytes = 0;
  for (const auto& [key, text] : items) nbytes += key.size() + text.size();
  const auto block = std::make_shared<std::vector<char>>();
  block->reserve(nbytes);  // it must not grow: the views point into it
  const auto keep = [&](std::string_view text) {
    const std::size_t begin = block->size();
    block->insert(block->end(), text.begin(), text.end());
    return std::string_view(block->data() + begin, text.size());
  };
  std::vector<Item> kept;
  kept.reserve(items.size());
  for (const auto& [key, text] : items) {
    const std::string_view own_key = keep(key);
    kept.push_back(
        {own_key, MetaAccess::value(MetaType::string, std::as_bytes(std::span(keep(text))))});
  }
  return MetaAccess::table(block, std::move(kept)).metadata;
}

}  // namespace safetensors::weights
