// A model's metadata: keys with typed values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "safetensors/export.hpp"

namespace safetensors::weights {

/// Types of metadata values, with the numbers that GGUF files have for them.
enum class MetaType : std::uint8_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// The name of a type, as "u8", "bool", "string".
[[nodiscard]] SAFETENSORS_API std::string_view name(MetaType type) noexcept;
/// Bytes of one value; nothing for strings and arrays, whose values differ in length.
[[nodiscard]] SAFETENSORS_API std::optional<std::size_t> byte_size(MetaType type) noexcept;

class MetaArray;

/// One value: a view of its bytes in the file. It and all views it gives are valid while a copy of
/// the ModelMetadata that it came from lives. Cheap to copy; safe to read from many threads. Each
/// as_... gives nothing when the value is of another type.
class SAFETENSORS_API MetaValue {
 public:
  [[nodiscard]] MetaType type() const noexcept { return type_; }
  /// Any integer type, never a bool; nothing also when the value does not fit.
  [[nodiscard]] std::optional<std::int64_t> as_int64() const noexcept;
  [[nodiscard]] std::optional<std::uint64_t> as_uint64() const noexcept;
  /// F32 or F64; never an integer.
  [[nodiscard]] std::optional<double> as_float() const noexcept;
  [[nodiscard]] std::optional<bool> as_bool() const noexcept;
  /// The bytes of a string. They need not be UTF-8: see is_utf8().
  [[nodiscard]] std::optional<std::string_view> as_string() const noexcept;
  [[nodiscard]] std::optional<MetaArray> as_array() const noexcept;
  /// Whether this is a string of valid UTF-8. Reads all of it.
  [[nodiscard]] bool is_utf8() const noexcept;

  /// Same type and same bytes.
  friend bool operator==(const MetaValue& a, const MetaValue& b) noexcept { return a.equals(b); }

 private:
  friend struct MetaAccess;
  MetaValue() = default;
  [[nodiscard]] bool equals(const MetaValue& other) const noexcept;

  const std::byte* data_ = nullptr;  // a number, a string's text, or an array's elements
  std::uint64_t nbytes_ = 0;
  std::uint64_t count_ = 0;  // elements of an array
  MetaType type_ = MetaType::u8;
  MetaType element_type_ = MetaType::u8;
};

/// An array: elements of one type, read from the file's bytes as they are asked for. Lifetime and
/// threads as of MetaValue.
class SAFETENSORS_API MetaArray {
 public:
  class iterator;
  [[nodiscard]] MetaType element_type() const noexcept { return element_type_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] iterator begin() const noexcept;
  [[nodiscard]] iterator end() const noexcept;
  /// Elements of fixed size as the file has them: little-endian, packed, at any address. Nothing
  /// for arrays of strings or arrays.
  [[nodiscard]] std::optional<std::span<const std::byte>> raw() const noexcept;

 private:
  friend class MetaValue;
  MetaArray() = default;

  const std::byte* data_ = nullptr;
  std::uint64_t nbytes_ = 0;
  std::uint64_t count_ = 0;
  MetaType element_type_ = MetaType::u8;
};

/// Over the elements of an array, forwards. Gives values, not references.
class SAFETENSORS_API MetaArray::iterator {
 public:
  using iterator_concept = std::forward_iterator_tag;
  using iterator_category = std::input_iterator_tag;
  using value_type = MetaValue;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = MetaValue;

  iterator() = default;
  [[nodiscard]] MetaValue operator*() const noexcept;
  iterator& operator++() noexcept;
  iterator operator++(int) noexcept {
    iterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const iterator& a, const iterator& b) noexcept {
    return a.left_ == b.left_;
  }

 private:
  friend class MetaArray;

  const std::byte* at_ = nullptr;
  std::uint64_t left_ = 0;  // elements from here on; elements of no bytes share an address
  MetaType type_ = MetaType::u8;
};

/// All metadata of a model, in the file's order. A handle: copies share one immutable table, and
/// with it the bytes that the values are views of.
class SAFETENSORS_API ModelMetadata {
 public:
  struct Item {
    std::string_view key;  ///< UTF-8
    MetaValue value;
  };

  /// Without any.
  ModelMetadata() noexcept;
  /// A table of strings, as a safetensors file's `__metadata__`. Copies the text; of a key that
  /// stands twice the first counts.
  [[nodiscard]] static ModelMetadata of_strings(
      std::span<const std::pair<std::string_view, std::string_view>> items);

  ModelMetadata(const ModelMetadata&) noexcept;
  ModelMetadata(ModelMetadata&&) noexcept;
  ModelMetadata& operator=(const ModelMetadata&) noexcept;
  ModelMetadata& operator=(ModelMetadata&&) noexcept;
  ~ModelMetadata();

  [[nodiscard]] std::span<const Item> items() const noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return items().size(); }
  [[nodiscard]] bool empty() const noexcept { return items().empty(); }
  [[nodiscard]] auto begin() const noexcept { return items().begin(); }
  [[nodiscard]] auto end() const noexcept { return items().end(); }
  /// The value of that key; nullptr when there is none. Takes the same time however many keys.
  [[nodiscard]] const MetaValue* find(std::string_view key) const noexcept;

 private:
  friend struct MetaAccess;
  struct Table;
  explicit ModelMetadata(std::shared_ptr<const Table> table) noexcept;

  std::shared_ptr<const Table> table_;  // null: without any
};

using Metadata = ModelMetadata;  ///< the former name, for one version

}  // namespace safetensors::weights
