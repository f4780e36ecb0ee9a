#include "format/plain_reader.hpp"

#include <cstdint>
#include <optional>

#include "base/plain_json.hpp"

namespace safetensors::format {
namespace {

/// A recursive descent parser. Its functions return false for text of another form.
class PlainReader : private PlainJson {
 public:
  PlainReader(std::string_view json, HeaderBuilder& builder) : PlainJson(json), builder_(builder) {}

  bool read() {
    if (!take('{')) return false;
    if (take('}')) return is_at_end();
    do {
      std::string_view name;
      if (!take_text(name) || !take_colon()) return false;
      if (name == kMetadataKey ? !read_metadata() : !read_entry(name)) return false;
    } while (take_comma());
    return take('}') && is_at_end();
  }

 private:
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  bool take_comma() { return take(',') && (take(' '), true); }
  bool take_colon() { return take(':') && (take(' '), true); }

  bool take_number(std::uint64_t& number) {
    std::string_view digits;
    return PlainJson::take_number(number, digits);
  }

  bool read_metadata() {
    if (saw_metadata_ || !take('{')) return false;
    saw_metadata_ = true;
    builder_.begin_metadata();
    if (!take('}')) {
      do {
        std::string_view key;
        std::string_view value;
        if (!take_text(key) || !take_colon() || !take_text(value)) return false;
        builder_.add_metadata_key(key);
        builder_.add_metadata_value(value);
      } while (take_comma());
      if (!take('}')) return false;
    }
    builder_.end_metadata();
    return true;
  }

  bool read_entry(std::string_view name) {
    if (!take('{')) return false;
    builder_.begin_tensor(name);
    unsigned fields = 0;
    do {
      const unsigned field = read_field();
      if (field == 0 || (fields & field) != 0) return false;
      fields |= field;
    } while (take_comma());
    return fields == kAll && take('}');
  }

  /// Returns the field that was read; 0 for text of another form.
  unsigned read_field() {
    if (take("\"dtype\":")) return take(' '), read_dtype() ? kDtype : 0U;
    if (take("\"shape\":")) return take(' '), read_shape() ? kShape : 0U;
    if (take("\"data_offsets\":")) return take(' '), read_offsets() ? kOffsets : 0U;
    return 0;
  }

  bool read_dtype() {
    std::string_view text;
    if (!take_text(text)) return false;
    if (text != safetensors::name(dtype_)) {  // adjacent tensors mostly have the same
      const std::optional<Dtype> dtype = parse_dtype(text);
      if (!dtype) return false;
      dtype_ = *dtype;
    }
    builder_.set_dtype(dtype_);
    return true;
  }

  bool read_shape() {
    if (!take('[')) return false;
    builder_.begin_shape();
    if (!take(']')) {
      do {
        std::uint64_t dim = 0;
        if (!take_number(dim)) return false;
        builder_.add_dim(dim);
      } while (take_comma());
      if (!take(']')) return false;
    }
    builder_.end_shape();
    return true;
  }

  bool read_offsets() {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    if (!take('[') || !take_number(begin) || !take_comma() || !take_number(end) || !take(']')) {
      return false;
    }
    builder_.set_offsets(begin, end);
    return true;
  }

  HeaderBuilder& builder_;
  Dtype dtype_ = Dtype::kF32;
  bool saw_metadata_ = false;
};

}  // namespace

bool read_plain_header(std::string_view json, HeaderBuilder& builder) {
  return PlainReader(json, builder).read();
}

}  // namespace safetensors::format
