#include "format/header_reader.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/json_document.hpp"
#include "base/rapidjson.hpp"
#include "base/text.hpp"
#include "format/open_keys.hpp"

namespace safetensors {
namespace {

// The limit of upstream's parser. Bounds the recursion of RapidJSON's reader.
constexpr unsigned kMaxDepth = 127;

/// Handles RapidJSON's events as a state machine:
///
///     kStart --{--> kTop --"__metadata__"--> kMetadataStart --{--> kMetadata <--> kMetadataValue
///                   kTop --name--> kEntryStart --{--> kEntry
///                                  kEntry --"dtype"--> kDtype
///                                  kEntry --"shape"--> kShapeStart --[--> kShape
///                                  kEntry --"data_offsets"--> kOffsetsStart --[--> kOffsets
///                                  kEntry --any other key--> kSkip, until its value ends
class HeaderHandler : public JsonHandler {
 public:
  HeaderHandler(HeaderBuilder& builder, std::string_view json)
      : JsonHandler(json), builder_(builder) {}

  /// Returns the tensor that error() is about; empty if there is none.
  [[nodiscard]] const std::string& subject() const noexcept { return subject_; }
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

  bool Null() {
    // MLX writes "__metadata__": null.
    if (state_ == State::kMetadataStart) {
      state_ = State::kTop;
      return true;
    }
    return other_value("null");
  }
  bool Bool(bool value) { return other_value(value ? "true" : "false"); }
  // RapidJSON calls these for numbers with a minus sign, "-0" included. No size is negative.
  bool Int(int value) { return Int64(value); }
  bool Int64(std::int64_t value) {
    if (state_ == State::kSkip) return end_skipped();
    return other_value("the negative number " + std::to_string(value));
  }
  bool Double(double) {
    return other_value("a number with a fraction, an exponent or over 64 bits");
  }
  bool RawNumber(const char*, rapidjson::SizeType, bool) { return other_value("a number"); }
  bool Uint(unsigned value) { return Uint64(value); }

  bool Uint64(std::uint64_t value) {
    switch (state_) {
      case State::kShape:
        builder_.add_dim(value);
        return true;
      case State::kOffsets:
        if (offset_count_ == 2) return stop_tensor("data_offsets hold more than two numbers");
        offsets_[offset_count_++] = value;
        return true;
      case State::kSkip:
        return end_skipped();
      default:
        return other_value("the number " + std::to_string(value));
    }
  }

  bool String(const char* text, rapidjson::SizeType size, bool) {
    const std::string_view value(text, size);
    if (!check_text(value)) return false;
    if (state_ == State::kDtype) return read_dtype(value);
    if (state_ == State::kMetadataValue) {
      builder_.add_metadata_value(value);
      state_ = State::kMetadata;
      return true;
    }
    return other_value("a string");
  }

  bool Key(const char* text, rapidjson::SizeType size, bool) {
    const std::string_view key(text, size);
    if (!check_text(key)) return false;
    switch (state_) {
      case State::kTop:
        return read_top_key(key);
      case State::kEntry:
        return read_field(key);
      case State::kMetadata:
        builder_.add_metadata_key(key);
        state_ = State::kMetadataValue;
        return true;
      default:
        keys_.add(key);
        return true;  // in the value of an unknown field
    }
  }

  bool StartObject() {
    if (!enter()) return false;
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kEntryStart:
        state_ = State::kEntry;
        fields_ = 0;
        has_unknown_fields_ = false;
        return true;
      case State::kMetadataStart:
        builder_.begin_metadata();
        state_ = State::kMetadata;
        return true;
      case State::kSkip:
        keys_.open();
        return true;
      default:
        return other_value("an object");
    }
  }

  bool EndObject(rapidjson::SizeType) {
    --depth_;
    switch (state_) {
      case State::kEntry:
        return end_entry();
      case State::kMetadata:
        builder_.end_metadata();
        state_ = State::kTop;
        return true;
      case State::kSkip:
        return close_keys() && end_skipped();
      default:
        state_ = State::kDone;
        return true;
    }
  }

  bool StartArray() {
    if (!enter()) return false;
    switch (state_) {
      case State::kShapeStart:
        state_ = State::kShape;
        builder_.begin_shape();
        return true;
      case State::kOffsetsStart:
        state_ = State::kOffsets;
        offset_count_ = 0;
        return true;
      case State::kSkip:
        return true;
      default:
        return other_value("an array");
    }
  }

  bool EndArray(rapidjson::SizeType) {
    --depth_;
    switch (state_) {
      case State::kShape:
        builder_.end_shape();
        state_ = State::kEntry;
        return true;
      case State::kOffsets:
        if (offset_count_ != 2) return stop_tensor("data_offsets hold fewer than two numbers");
        builder_.set_offsets(offsets_[0], offsets_[1]);
        state_ = State::kEntry;
        return true;
      default:
        return end_skipped();
    }
  }

 private:
  enum class State : std::uint8_t {
    kStart,
    kTop,            // in the outer object, before a key
    kMetadataStart,  // after the key "__metadata__"
    kMetadata,
    kMetadataValue,
    kEntryStart,  // after a tensor's name
    kEntry,       // in a tensor's object, before a key
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kSkip,  // in the value of an unknown field
    kDone,
  };
  enum Field : unsigned { kDtypeField = 1, kShapeField = 2, kOffsetsField = 4 };

  bool stop(std::string text, ErrorCode code = ErrorCode::kInvalidHeaderJson) {
    code_ = code;
    return JsonHandler::stop(std::move(text));
  }
  bool stop_tensor(const std::string& text, ErrorCode code = ErrorCode::kInvalidHeaderJson) {
    subject_ = builder_.tensor_name();
    return stop("tensor `" + clipped(builder_.tensor_name()) + "`: " + text, code);
  }

  bool enter() {
    return ++depth_ <= kMaxDepth ||
           stop("nested deeper than " + std::to_string(kMaxDepth) + " levels");
  }

  bool read_top_key(std::string_view key) {
    if (key == kMetadataKey) {
      if (saw_metadata_) {
        return stop("`__metadata__` occurs twice", ErrorCode::kDuplicateName);
      }
      saw_metadata_ = true;
      state_ = State::kMetadataStart;
      return true;
    }
    builder_.begin_tensor(key);
    state_ = State::kEntryStart;
    return true;
  }

  bool read_field(std::string_view key) {
    if (key == "dtype") return read_field(kDtypeField, State::kDtype, "dtype");
    if (key == "shape") return read_field(kShapeField, State::kShapeStart, "shape");
    if (key == "data_offsets") {
      return read_field(kOffsetsField, State::kOffsetsStart, "data_offsets");
    }
    if (!has_unknown_fields_) {
      has_unknown_fields_ = true;
      keys_.open();
    }
    keys_.add(key);
    state_ = State::kSkip;
    skip_base_ = depth_;
    return true;
  }
  bool read_field(Field field, State next, const char* name) {
    if ((fields_ & field) != 0) {
      return stop_tensor(std::string("field `") + name + "` occurs twice",
                         ErrorCode::kDuplicateName);
    }
    fields_ |= field;
    state_ = next;
    return true;
  }

  bool read_dtype(std::string_view text) {
    // Adjacent tensors mostly have the same type.
    if (text != name(dtype_)) {
      const std::optional<Dtype> dtype = parse_dtype(text);
      if (!dtype) return stop_tensor("unknown dtype `" + clipped(text) + "`");
      dtype_ = *dtype;
    }
    builder_.set_dtype(dtype_);
    state_ = State::kEntry;
    return true;
  }

  bool end_entry() {
    if (has_unknown_fields_ && !close_keys()) return false;
    if ((fields_ & kDtypeField) == 0) return stop_tensor("field `dtype` is missing");
    if ((fields_ & kShapeField) == 0) return stop_tensor("field `shape` is missing");
    if ((fields_ & kOffsetsField) == 0) return stop_tensor("field `data_offsets` is missing");
    state_ = State::kTop;
    return true;
  }

  bool close_keys() {
    const std::optional<std::string> twice = keys_.close();
    return !twice || stop_tensor("field `" + *twice + "` occurs twice", ErrorCode::kDuplicateName);
  }

  /// Called after each value within an unknown field. Leaves kSkip if it was the field's own value.
  bool end_skipped() {
    if (depth_ == skip_base_) state_ = State::kEntry;
    return true;
  }

  bool other_value(std::string_view what) {
    if (state_ == State::kSkip) return end_skipped();
    const std::string found(what);
    switch (state_) {
      case State::kStart:
        return stop("expected an object, found " + found);
      case State::kMetadataStart:
        return stop("`__metadata__` is " + found + ", not an object");
      case State::kMetadataValue:
        return stop("a metadata value is " + found +
                    ", not a string: `safetensors convert --lenient` makes text of it");
      case State::kEntryStart:
        return stop_tensor("the entry is " + found + ", not an object");
      case State::kDtype:
        return stop_tensor("dtype is " + found + ", not a string");
      case State::kShapeStart:
        return stop_tensor("shape is " + found + ", not an array");
      case State::kShape:
        return stop_tensor("shape holds " + found + ", not an unsigned integer");
      case State::kOffsetsStart:
        return stop_tensor("data_offsets is " + found + ", not an array");
      default:
        return stop_tensor("data_offsets holds " + found + ", not an unsigned integer");
    }
  }

  HeaderBuilder& builder_;
  State state_ = State::kStart;
  unsigned depth_ = 0;
  unsigned skip_base_ = 0;
  unsigned fields_ = 0;
  unsigned offset_count_ = 0;
  std::uint64_t offsets_[2] = {0, 0};
  Dtype dtype_ = Dtype::kF32;
  bool saw_metadata_ = false;
  bool has_unknown_fields_ = false;
  format::OpenKeys keys_;
  std::string subject_;
  ErrorCode code_ = ErrorCode::kInvalidHeaderJson;
};

}  // namespace

void read_header(std::string_view json, HeaderBuilder& builder) {
  HeaderHandler handler(builder, json);
  rapidjson::MemoryStream stream(json.data(), json.size());
  rapidjson::Reader reader;
  const rapidjson::ParseResult result = reader.Parse(stream, handler);
  if (result.IsError()) {
    const std::string text = result.Code() == rapidjson::kParseErrorTermination
                                 ? handler.error()
                                 : std::string(rapidjson::GetParseError_En(result.Code()));
    fail(handler.error().empty() ? ErrorCode::kInvalidHeaderJson : handler.code(),
         "invalid JSON in header: " + text + " (at byte " + std::to_string(result.Offset()) + ")",
         {.subject = handler.subject()});
  }
  // The stream reports its end as a NUL, so a NUL in the JSON looks like the end.
  if (stream.Tell() != json.size()) {
    fail(ErrorCode::kInvalidHeaderJson,
         "invalid JSON in header: something follows the object (at byte " +
             std::to_string(stream.Tell()) + ")");
  }
}

}  // namespace safetensors
