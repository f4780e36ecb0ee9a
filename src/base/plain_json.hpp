// A cursor over JSON of the form in which programs write it: strings without escapes, and unsigned
// numbers. Several times as fast as a reader of all JSON, to which a caller turns for the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/json_document.hpp"
#include "base/json_special.hpp"

namespace safetensors {

/// Each function that takes something returns false for text of another form.
class PlainJson {
 public:
  /// Requires: `text` is valid UTF-8.
  explicit PlainJson(std::string_view text) : p_(text.data()), end_(text.data() + text.size()) {}

  [[nodiscard]] bool is_at_end() const noexcept { return p_ == end_; }
  /// Returns what was not taken yet.
  [[nodiscard]] std::string_view rest() const noexcept {
    return {p_, static_cast<std::size_t>(end_ - p_)};
  }

  void skip_space() noexcept {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }

  bool take(char wanted) noexcept {
    if (p_ == end_ || *p_ != wanted) return false;
    ++p_;
    return true;
  }

  bool take(std::string_view wanted) noexcept {
    if (static_cast<std::size_t>(end_ - p_) < wanted.size() ||
        std::memcmp(p_, wanted.data(), wanted.size()) != 0) {
      return false;
    }
    p_ += wanted.size();
    return true;
  }

  /// Takes a string and sets `text` to what is between the quotes.
  bool take_text(std::string_view& text) noexcept {
    if (!take('"')) return false;
    const char* const begin = p_;
    p_ = find_json_special(p_, end_);
    text = {begin, static_cast<std::size_t>(p_ - begin)};
    return take('"');
  }

  /// Takes a number below 10^19, and sets `text` to its digits.
  bool take_number(std::uint64_t& number, std::string_view& text) noexcept {
    constexpr std::ptrdiff_t kSafeDigits = 19;  // a number of 19 digits is below 2^64
    const char* const begin = p_;
    number = 0;
    for (; p_ != end_ && *p_ >= '0' && *p_ <= '9'; ++p_) {
      number = number * 10 + static_cast<std::uint64_t>(*p_ - '0');
    }
    const std::ptrdiff_t digits = p_ - begin;
    text = {begin, static_cast<std::size_t>(digits)};
    return digits == 1 || (digits > 1 && digits <= kSafeDigits && *begin != '0');
  }

 private:
  const char* p_;
  const char* end_;
};

namespace detail {

/// Passes an object whose values are strings, numbers and objects on to a handler.
template <typename Handler, typename Refill>
bool read_plain_object(PlainJson& json, Handler& handler, const Refill& refill,
                       unsigned max_depth) {
  if (max_depth == 0 || !json.take('{') || !handler.open(JsonKind::kObject)) return false;
  json.skip_space();
  if (!json.take('}')) {
    do {
      std::string_view text;
      if (!refill(json)) return false;
      json.skip_space();
      if (!json.take_text(text) || !handler.key(text)) return false;
      json.skip_space();
      if (!json.take(':')) return false;
      json.skip_space();
      std::uint64_t number = 0;
      if (json.take_text(text)) {
        if (!handler.value(JsonKind::kString, text)) return false;
      } else if (json.take_number(number, text)) {
        if (!handler.value(JsonKind::kNumber, text)) return false;
      } else if (!read_plain_object(json, handler, refill, max_depth - 1)) {
        return false;
      }
      json.skip_space();
    } while (json.take(','));
    if (!json.take('}')) return false;
  }
  return handler.close(JsonKind::kObject);
}

}  // namespace detail

/// Reads a document of objects, strings without escapes and unsigned numbers, with the handler of
/// read_json_document().
///
/// refill: `bool(PlainJson&)`, called before each entry of an object and at the end. Where little
///   is left of a text that has more, it gives `json` the rest and what follows. Returns false if
///   that is not UTF-8.
/// Returns false at the first byte of any other form, legal or not, if the handler refuses
/// something, and if an entry is cut off because too little was left: discard the handler then, and
/// use read_json_document() with a new one.
/// Requires: `text` is valid UTF-8.
template <typename Handler, typename Refill>
[[nodiscard]] bool read_plain_document(std::string_view text, Handler& handler,
                                       const Refill& refill) {
  constexpr unsigned kMaxNesting = 4;
  PlainJson json(text);
  if (!refill(json)) return false;
  json.skip_space();
  if (!detail::read_plain_object(json, handler, refill, kMaxNesting)) return false;
  for (;;) {
    json.skip_space();
    if (!json.is_at_end() || !refill(json)) return false;
    if (json.is_at_end()) return true;
  }
}

/// The same for a text that is whole.
template <typename Handler>
[[nodiscard]] bool read_plain_document(std::string_view text, Handler& handler) {
  return read_plain_document(text, handler, [](PlainJson&) { return true; });
}

}  // namespace safetensors
