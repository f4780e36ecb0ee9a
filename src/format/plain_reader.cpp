#include "format/plain_reader.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

namespace safetensors::format {
namespace {

/// Returns the first byte in [p, end) that is a quote, a backslash or a control character; `end` if
/// there is none.
const char* find_run_end(const char* p, const char* end) noexcept {
  constexpr std::uint64_t kOnes = 0x0101010101010101U;
  constexpr std::uint64_t kHigh = 0x8080808080808080U;
  if constexpr (std::endian::native == std::endian::little) {
    // Eight bytes at a time. (x - 1) & ~x has the high bit set in a byte x that is 0, and so finds
    // the byte c as the zero of w ^ c; (x - 0x20) & ~x likewise finds bytes below 0x20. The borrow
    // of a subtraction can set bits above the lowest hit, which therefore is the only one used.
    // https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord
    for (; end - p >= 8; p += 8) {
      std::uint64_t w = 0;
      std::memcpy(&w, p, sizeof w);
      const std::uint64_t quote = w ^ (kOnes * '"');
      const std::uint64_t backslash = w ^ (kOnes * '\\');
      const std::uint64_t hits = (((quote - kOnes) & ~quote) | ((backslash - kOnes) & ~backslash) |
                                  ((w - kOnes * 0x20) & ~w)) &
                                 kHigh;
      if (hits != 0) return p + std::countr_zero(hits) / 8;
    }
  }
  while (p != end && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
  return p;
}

/// A recursive descent parser. Its functions return false for text of another form.
class PlainReader {
 public:
  PlainReader(std::string_view json, HeaderBuilder& builder)
      : p_(json.data()), end_(json.data() + json.size()), builder_(builder) {}

  bool read() {
    if (!take('{')) return false;
    if (take('}')) return p_ == end_;
    do {
      std::string_view name;
      if (!take_text(name) || !take_colon()) return false;
      if (name == kMetadataKey ? !read_metadata() : !read_entry(name)) return false;
    } while (take_comma());
    return take('}') && p_ == end_;
  }

 private:
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  bool take(char wanted) {
    if (p_ == end_ || *p_ != wanted) return false;
    ++p_;
    return true;
  }
  bool take(std::string_view wanted) {
    if (static_cast<std::size_t>(end_ - p_) < wanted.size() ||
        std::memcmp(p_, wanted.data(), wanted.size()) != 0) {
      return false;
    }
    p_ += wanted.size();
    return true;
  }
  bool take_comma() { return take(',') && (take(' '), true); }
  bool take_colon() { return take(':') && (take(' '), true); }

  /// Reads a string and sets `text` to what is between the quotes.
  bool take_text(std::string_view& text) {
    if (!take('"')) return false;
    const char* const begin = p_;
    p_ = find_run_end(p_, end_);
    text = {begin, static_cast<std::size_t>(p_ - begin)};
    return take('"');
  }

  bool take_number(std::uint64_t& number) {
    constexpr std::ptrdiff_t kSafeDigits = 19;  // a number of 19 digits is below 2^64
    const char* const begin = p_;
    number = 0;
    for (; p_ != end_ && *p_ >= '0' && *p_ <= '9'; ++p_) {
      number = number * 10 + static_cast<std::uint64_t>(*p_ - '0');
    }
    const std::ptrdiff_t digits = p_ - begin;
    return digits == 1 || (digits > 1 && digits <= kSafeDigits && *begin != '0');
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

  const char* p_;
  const char* end_;
  HeaderBuilder& builder_;
  Dtype dtype_ = Dtype::kF32;
  bool saw_metadata_ = false;
};

}  // namespace

bool read_plain_header(std::string_view json, HeaderBuilder& builder) {
  return PlainReader(json, builder).read();
}

}  // namespace safetensors::format
