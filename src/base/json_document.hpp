// Reads JSON documents that are no headers of tensors: sums, indexes and configurations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/rapidjson.hpp"
#include "base/utf8.hpp"

namespace safetensors {

enum class JsonKind : std::uint8_t { kNull, kBool, kNumber, kString, kObject, kArray };

/// Why a document was not read to its end.
struct JsonFault {
  enum class Kind : std::uint8_t {
    kSyntax,   ///< it is not JSON, or not UTF-8
    kDepth,    ///< it is nested too deeply
    kRefused,  ///< the handler returned false, and knows why
  };
  Kind kind;
  std::string why;  ///< empty if the handler refused it
  std::size_t offset;
};

/// What is beyond JSON's grammar.
struct JsonRules {
  bool allows_nan = false;  ///< NaN and Infinity, as Python writes them
  std::size_t max_depth = 127;
};

namespace detail {

/// Passes RapidJSON's events on to a handler.
template <typename Handler>
class JsonEvents {
 public:
  JsonEvents(Handler& handler, std::size_t max_depth) : handler_(handler), max_depth_(max_depth) {}

  [[nodiscard]] bool is_too_deep() const noexcept { return depth_ > max_depth_; }

  bool Null() { return handler_.value(JsonKind::kNull, "null"); }
  bool Bool(bool value) { return handler_.value(JsonKind::kBool, value ? "true" : "false"); }
  bool RawNumber(const char* text, rapidjson::SizeType size, bool) {
    return handler_.value(JsonKind::kNumber, {text, size});
  }
  // kParseNumbersAsStringsFlag reports numbers by RawNumber only. RapidJSON's own conversion to
  // double counts leading zeros as digits.
  bool Int(int) { return false; }
  bool Uint(unsigned) { return false; }
  bool Int64(std::int64_t) { return false; }
  bool Uint64(std::uint64_t) { return false; }
  bool Double(double) { return false; }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    return handler_.value(JsonKind::kString, {text, size});
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) { return handler_.key({text, size}); }
  bool StartObject() { return enter() && handler_.open(JsonKind::kObject); }
  bool StartArray() { return enter() && handler_.open(JsonKind::kArray); }
  bool EndObject(rapidjson::SizeType) { return leave(JsonKind::kObject); }
  bool EndArray(rapidjson::SizeType) { return leave(JsonKind::kArray); }

 private:
  bool enter() { return ++depth_ <= max_depth_; }
  bool leave(JsonKind kind) {
    --depth_;
    return handler_.close(kind);
  }

  Handler& handler_;
  std::size_t max_depth_;
  std::size_t depth_ = 0;
};

template <unsigned kFlags, typename Handler>
std::optional<JsonFault> read_json(std::string_view text, std::size_t max_depth, Handler& handler) {
  JsonEvents<Handler> events(handler, max_depth);
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  // Iterative: a deep document must not overflow the stack.
  const rapidjson::ParseResult result =
      reader.Parse<kFlags | rapidjson::kParseIterativeFlag | rapidjson::kParseNumbersAsStringsFlag>(
          stream, events);
  if (result.Code() == rapidjson::kParseErrorTermination) {
    if (!events.is_too_deep()) return JsonFault{JsonFault::Kind::kRefused, {}, result.Offset()};
    return JsonFault{JsonFault::Kind::kDepth,
                     "nested deeper than " + std::to_string(max_depth) + " levels",
                     result.Offset()};
  }
  if (result.IsError()) {
    return JsonFault{JsonFault::Kind::kSyntax, rapidjson::GetParseError_En(result.Code()),
                     result.Offset()};
  }
  // The stream reports its end as a NUL, so a NUL in the JSON looks like the end.
  if (stream.Tell() != text.size()) {
    return JsonFault{JsonFault::Kind::kSyntax, "something follows the object", stream.Tell()};
  }
  return std::nullopt;
}

}  // namespace detail

/// What handlers share. A function that returns false stops the reader; error() then says why,
/// unless it is empty.
class JsonHandler {
 public:
  [[nodiscard]] const std::string& error() const noexcept { return error_; }

 protected:
  JsonHandler() = default;
  /// Looks whether the JSON has escapes. Without any, check_text() has nothing to find.
  explicit JsonHandler(std::string_view json)
      : JsonHandler(json.find('\\') != std::string_view::npos) {}
  explicit JsonHandler(bool has_escapes) : has_escapes_(has_escapes) {}

  bool stop(std::string why) {
    error_ = std::move(why);
    return false;
  }

  /// Stops at a string that is not UTF-8: the JSON is, but an escape can spell half of a surrogate
  /// pair.
  bool check_text(std::string_view text,
                  const char* why = "a string holds half of a surrogate pair") {
    return !has_escapes_ || !find_invalid_utf8(text) || stop(why);
  }

 private:
  bool has_escapes_ = true;
  std::string error_;
};

/// Reads a document and calls a handler, whose functions return false to stop:
///
///     bool value(JsonKind, std::string_view text)   a scalar; numbers as they are written
///     bool open(JsonKind)                           the beginning of an object or a list
///     bool close(JsonKind)                          its end
///     bool key(std::string_view)
///
/// A string can hold half of a surrogate pair: see JsonHandler::check_text().
///
/// Safe for untrusted input: time and memory are linear in the length, without recursion.
template <typename Handler>
[[nodiscard]] std::optional<JsonFault> read_json_document(std::string_view text,
                                                          const JsonRules& rules,
                                                          Handler& handler) {
  if (const auto bad = find_invalid_utf8(text)) {
    return JsonFault{JsonFault::Kind::kSyntax, "not UTF-8", bad->offset};
  }
  return rules.allows_nan
             ? detail::read_json<rapidjson::kParseNanAndInfFlag>(text, rules.max_depth, handler)
             : detail::read_json<0>(text, rules.max_depth, handler);
}

}  // namespace safetensors
