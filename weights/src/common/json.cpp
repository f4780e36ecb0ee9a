#include "common/json.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <system_error>

#if !defined(__cpp_lib_to_chars)
#include <locale>
#include <sstream>
#endif

#include "base/json_document.hpp"
#include "base/parse_integer.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "safetensors/file_kind.hpp"

namespace safetensors::weights {
namespace {

// The text, the reader's copy of a string, and the values are to take at most 8 times the text and
// 64 MB. The values of an index of 300,000 tensors fit, whose names have 40 letters.
constexpr std::uint64_t kValuesTimes = 5;
constexpr std::uint64_t kValuesSpare = std::uint64_t{16} << 20;
// While a list grows, it has room for three times its values.
constexpr std::uint64_t kRoom = 3;
constexpr std::uint64_t kStringHead = 32;

/// Returns what a file that is no JSON is, for an error text; empty if its start does not say it.
std::string hint_of(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF") || text.starts_with("\xFF\xFE") ||
      text.starts_with("\xFE\xFF")) {
    return ". It begins with a byte order mark: save it as UTF-8 without one";
  }
  const auto kind = foreign_file_kind(std::as_bytes(std::span(text)));
  if (!kind || kind->name == "json") return {};
  return ". This is " + std::string(kind->description);
}

/// Numbers that JSON lacks, as Python writes them.
std::optional<double> special_number(std::string_view text) noexcept {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "Infinity" || text == "Inf") return kInfinity;
  if (text == "-Infinity" || text == "-Inf") return -kInfinity;
  if (text == "NaN" || text == "-NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

/// Returns the double nearest to a number, or nothing if it is out of range.
std::optional<double> double_of(std::string_view text) {
  double value = 0;
#if defined(__cpp_lib_to_chars)
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
#else
  std::istringstream stream{std::string(text)};  // its locale is the classic one, unlike strtod's
  stream.imbue(std::locale::classic());
  if (!(stream >> value) || !stream.eof()) return std::nullopt;
#endif
  return value;
}

/// Handles the events of read_json_document(). code() is that of the error().
class Builder : public JsonHandler {
 public:
  Builder(Duplicates duplicates, std::size_t text_nbytes)
      : duplicates_(duplicates),
        text_nbytes_(text_nbytes),
        max_nbytes_(kValuesTimes * text_nbytes + kValuesSpare) {}

  [[nodiscard]] Errc code() const noexcept { return code_; }
  Json take() { return std::move(root_); }

  bool value(JsonKind kind, std::string_view text) {
    switch (kind) {
      case JsonKind::kNull:
        return add(Json());
      case JsonKind::kBool:
        return add(Json(text == "true"));
      case JsonKind::kNumber:
        return add_number(text);
      default:
        return check_text(text) && charge(kStringHead + text.size()) &&
               add(Json(std::string(text)));
    }
  }
  bool key(std::string_view text) {
    if (!check_text(text)) return false;
    if (!charge(kStringHead + text.size() + kRoom * (sizeof(Json::Member) - sizeof(Json)))) {
      return false;
    }
    key_ = text;
    return true;
  }
  bool open(JsonKind kind) {
    if (!charge(kRoom * sizeof(Json))) return false;
    // The pointers stay valid: growing a container moves its finished elements only, and all open
    // values are ancestors of the new one.
    open_.push_back(place(kind == JsonKind::kObject ? Json(Json::Object()) : Json(Json::Array())));
    return true;
  }
  bool close(JsonKind kind) {
    if (kind == JsonKind::kArray) {
      open_.pop_back();
      return true;
    }
    const Json::Object& object = open_.back()->object();
    open_.pop_back();
    if (duplicates_ == Duplicates::last_counts) return true;
    std::vector<std::string_view> names;
    names.reserve(object.size());
    for (const Json::Member& member : object) names.emplace_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice == names.end()) return true;
    return stop(Errc::duplicate, "the name `" + clipped(*twice) + "` occurs twice in one object");
  }

 private:
  bool stop(Errc code, std::string error) {
    code_ = code;
    return JsonHandler::stop(std::move(error));
  }
  /// Counts memory before it is allocated.
  bool charge(std::uint64_t nbytes) {
    nbytes_ += nbytes;
    return nbytes_ <= max_nbytes_ ||
           stop(Errc::limit, grouped(text_nbytes_) +
                                 " bytes of JSON have so many values that they " +
                                 "take more than " + grouped(max_nbytes_) + " bytes of memory");
  }
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->as_array() != nullptr) {
      return &open_.back()->array().emplace_back(std::move(value));
    }
    return &open_.back()->object().emplace_back(std::move(key_), std::move(value)).second;
  }
  bool add_number(std::string_view text) {
    if (const std::optional<double> special = special_number(text)) return add(Json(*special));
    if (const auto whole = parse_integer<std::int64_t>(text)) return add(Json(*whole));
    const std::optional<double> number = double_of(text);
    if (number) return add(Json(*number));
    return stop(Errc::json, "the number " + clipped(text) + " does not fit in a double");
  }
  bool add(Json value) {
    if (!charge(kRoom * sizeof(Json))) return false;
    place(std::move(value));
    return true;
  }
  Duplicates duplicates_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  std::size_t text_nbytes_;
  std::uint64_t max_nbytes_;
  std::uint64_t nbytes_ = 0;
  Errc code_ = Errc::json;
};

}  // namespace

std::optional<std::int64_t> Json::as_integer() const noexcept {
  if (const auto* whole = std::get_if<std::int64_t>(&value_)) return *whole;
  const auto* number = std::get_if<double>(&value_);
  // Above 2^53 not every integer is a double, so the file may have meant another one.
  if (number == nullptr || std::abs(*number) > 9007199254740992.0) return std::nullopt;
  if (std::trunc(*number) != *number) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::optional<double> Json::as_number() const noexcept {
  if (const auto* whole = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*whole);
  if (const auto* number = std::get_if<double>(&value_)) return *number;
  const Json* spelled = find("__float__");
  const std::string* text = spelled == nullptr ? nullptr : spelled->as_string();
  return text == nullptr ? std::nullopt : special_number(*text);
}

const Json* Json::find(std::string_view name) const noexcept {
  const Object* object = as_object();
  if (object == nullptr) return nullptr;
  const auto found = std::find_if(object->rbegin(), object->rend(),
                                  [&](const Member& member) { return member.first == name; });
  return found == object->rend() ? nullptr : &found->second;
}

std::string_view Json::kind() const noexcept {
  constexpr std::string_view kKinds[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "an array",  "an object"};
  return kKinds[value_.index()];
}

Json parse_json(std::string_view text, const std::filesystem::path& path, Duplicates duplicates,
                const Limits& limits) {
  Builder builder(duplicates, text.size());
  const JsonRules rules{.allows_nan = true, .max_depth = limits.json_depth};
  if (const auto fault = read_json_document(text, rules, builder)) {
    switch (fault->kind) {
      case JsonFault::Kind::kRefused:
        fail(builder.code(), path, {}, builder.error(), fault->offset);
      case JsonFault::Kind::kDepth:
        fail(Errc::limit, path, {}, fault->why, fault->offset);
      case JsonFault::Kind::kSyntax:
        fail(Errc::json, path, {}, "not JSON: " + fault->why + hint_of(text), fault->offset);
    }
  }
  return builder.take();
}

Json read_json(const Files& files, const std::filesystem::path& path, Duplicates duplicates,
               const Limits& limits) {
  return with_error_context(path, {}, [&] {
    const FileBytes file = files.open(path, false);
    const std::uint64_t size = file.source->size();
    if (size > limits.json_nbytes) {
      fail(Errc::limit, path, {},
           grouped(size) + " bytes are more than the " + grouped(limits.json_nbytes) + " allowed");
    }
    std::string text(static_cast<std::size_t>(size), '\0');
    file.source->read_at(0, std::as_writable_bytes(std::span(text)));
    return parse_json(text, path, duplicates, limits);
  });
}

}  // namespace safetensors::weights
