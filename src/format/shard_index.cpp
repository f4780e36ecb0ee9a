#include "format/shard_index.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/json_document.hpp"
#include "base/parse_integer.hpp"
#include "base/plain_json.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "format/below_folder.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

constexpr std::size_t kShortestEntry = 7;  // "a":"",

std::string in_quotes(std::string_view text) { return "'" + clipped(text) + "'"; }

/// Returns a path without "./" before it, which some programs write: the name of the same file.
std::string_view without_dots(std::string_view path) {
  while (path.size() > 2 && path.starts_with("./")) path.remove_prefix(2);
  return path;
}

}  // namespace

/// Handles the events of read_json_document():
///
///     {"metadata": {"total_size": N, ...}, "weight_map": {"tensor": "file", ...}, ...}
///     depth 1       depth 2                               depth 2
class ShardIndexHandler : public JsonHandler {
 public:
  explicit ShardIndexHandler(std::string_view json) : JsonHandler(json) { reserve(json.size()); }
  /// Handles a document of this size without escapes.
  ShardIndexHandler(std::size_t nbytes, FileSeen seen)
      : JsonHandler(false), seen_(std::move(seen)) {
    reserve(nbytes);
  }

  /// The tensor that error() is about; empty if there is none.
  [[nodiscard]] const std::string& subject() const noexcept { return subject_; }

  bool value(JsonKind kind, std::string_view text) {
    if (is_in_map()) return kind == JsonKind::kString ? add_file(text) : wrong_value(clipped(text));
    if (is_total_ && depth_ == 2 && kind == JsonKind::kNumber) read_total(text);
    return true;
  }

  bool key(std::string_view key) {
    if (depth_ == 1) return begin_section(key);
    is_total_ = depth_ == 2 && section_ == Section::kMetadata && key == "total_size";
    return !is_in_map() || add_name(key);
  }

  bool open(JsonKind kind) {
    const bool is_object = kind == JsonKind::kObject;
    if (is_in_map()) return wrong_value(is_object ? "an object" : "an array");
    if (depth_ == 1 && section_ == Section::kMap && is_object) has_map_ = true;
    if (depth_ == 1 && !is_object) section_ = Section::kOther;
    ++depth_;
    return true;
  }

  bool close(JsonKind) {
    --depth_;
    return true;
  }

  /// Checks the index and returns it. Throws: Error kInvalidHeaderJson or kDuplicateName.
  ShardIndex finish() && {
    if (!has_map_) fail(ErrorCode::kInvalidHeaderJson, "the index has no object `weight_map`");
    number_files();
    check_files();
    if (!is_sorted_) sort_names();
    return std::move(index_);
  }

 private:
  enum class Section : std::uint8_t { kOther, kMap, kMetadata };
  using Files = std::map<std::string, std::uint32_t, std::less<>>;
  static constexpr const char* kHalfPair =
      "the index is not JSON: a string holds half of a surrogate pair";

  [[nodiscard]] bool is_in_map() const noexcept { return depth_ == 2 && section_ == Section::kMap; }

  void reserve(std::size_t nbytes) {
    // The maximum: reserved memory that is not touched costs nothing, and growing would copy.
    index_.text_.reserve(nbytes);
    index_.entries_.reserve(nbytes / kShortestEntry + 1);
  }

  bool begin_section(std::string_view key) {
    section_ = Section::kOther;
    if (key == "metadata") section_ = Section::kMetadata;
    if (key != "weight_map") return true;
    if (has_map_) return stop("the index has two objects `weight_map`");
    section_ = Section::kMap;
    return true;
  }

  bool add_name(std::string_view name) {
    if (!check_text(name, kHalfPair)) return false;
    // Most programs write their indexes sorted, and then no name occurs twice.
    is_sorted_ = is_sorted_ && (index_.size() == 0 || index_.name(index_.size() - 1) < name);
    index_.entries_.push_back({static_cast<std::uint32_t>(index_.text_.size()),
                               static_cast<std::uint32_t>(name.size()), 0});
    index_.text_.insert(index_.text_.end(), name.begin(), name.end());
    return true;
  }

  bool find_file(std::string_view path) {
    last_file_ = files_.find(path);
    if (last_file_ != files_.end()) return true;
    if (!check_text(path, kHalfPair)) return false;
    if (files_.size() == kMaxIndexFiles) {
      return stop("the index names more than " + grouped(kMaxIndexFiles) + " files");
    }
    last_file_ = files_.emplace(path, static_cast<std::uint32_t>(files_.size())).first;
    if (seen_ && is_below_folder(path)) seen_(last_file_->first);
    return true;
  }

  bool add_file(std::string_view text) {
    const std::string_view path = without_dots(text);
    if (last_file_ == files_.end() || last_file_->first != path) {
      if (!find_file(path)) return false;
    }
    index_.entries_.back().file = last_file_->second;
    return true;
  }

  void read_total(std::string_view text) {
    if (const auto total = parse_integer<std::uint64_t>(text)) index_.total_size_ = total;
  }

  bool wrong_value(const std::string& what) {
    subject_ = index_.name(index_.size() - 1);
    return stop("the index names no file for tensor " + in_quotes(index_.name(index_.size() - 1)) +
                ", but " + what);
  }

  /// Numbers the files in the order of their names.
  void number_files() {
    std::vector<std::uint32_t> numbers(files_.size());
    for (auto& [path, number] : files_) {
      numbers[number] = static_cast<std::uint32_t>(index_.files_.size());
      index_.files_.push_back(path);
    }
    for (ShardIndex::Entry& entry : index_.entries_) entry.file = numbers[entry.file];
  }

  void check_files() const {
    std::vector<bool> are_checked(index_.files_.size());
    for (std::size_t i = 0; i < index_.size(); ++i) {
      if (are_checked[index_.file(i)]) continue;
      are_checked[index_.file(i)] = true;
      const std::string& path = index_.files_[index_.file(i)];
      if (is_below_folder(path)) continue;
      std::string why = "not a file below the index's directory";
      if (path.find('\0') != std::string::npos) why = "no file can have this name";
      if (path.size() > kMaxFileNameSize) {
        why = "a name of " + grouped(path.size()) + " bytes, the limit is " +
              grouped(kMaxFileNameSize);
      }
      fail(ErrorCode::kInvalidHeaderJson,
           "the index puts tensor " + in_quotes(index_.name(i)) + " into " + in_quotes(path) +
               ": " + why,
           {.subject = std::string(index_.name(i))});
    }
  }

  /// Throws: Error kDuplicateName if a name occurs twice.
  void sort_names() {
    auto& entries = index_.entries_;
    const auto name = [this](const ShardIndex::Entry& entry) {
      return std::string_view(index_.text_.data() + entry.begin, entry.size);
    };
    std::sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
      return std::pair(name(a), a.begin) < std::pair(name(b), b.begin);
    });
    const auto twice =
        std::adjacent_find(entries.begin(), entries.end(),
                           [&](const auto& a, const auto& b) { return name(a) == name(b); });
    if (twice == entries.end()) return;
    fail(ErrorCode::kDuplicateName,
         "the index puts tensor " + in_quotes(name(*twice)) +
             " into two files: " + in_quotes(index_.files_[twice->file]) + " and " +
             in_quotes(index_.files_[std::next(twice)->file]),
         {.subject = std::string(name(*twice))});
  }

  ShardIndex index_;
  FileSeen seen_{};
  Files files_;
  Files::const_iterator last_file_ = files_.end();  // adjacent tensors mostly have the same
  Section section_ = Section::kOther;               // the current key of the outer object
  unsigned depth_ = 0;
  bool has_map_ = false;
  bool is_total_ = false;
  bool is_sorted_ = true;
  std::string subject_;
};

namespace {

ShardIndex parse_index(std::string_view json) {
  if (json.size() > kMaxIndexSize) {
    fail(ErrorCode::kHeaderTooLarge,
         "the index is larger than " + std::to_string(kMaxIndexSize) + " bytes");
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (json.starts_with(kByteOrderMark)) json.remove_prefix(kByteOrderMark.size());
  if (!find_invalid_utf8(json)) {
    ShardIndexHandler handler(json.size(), {});
    if (read_plain_document(json, handler)) return std::move(handler).finish();
  }
  ShardIndexHandler handler(json);
  if (const auto fault = read_json_document(json, {.allows_nan = true}, handler)) {
    const bool is_ours = fault->kind == JsonFault::Kind::kRefused;
    fail(ErrorCode::kInvalidHeaderJson,
         (is_ours ? handler.error() : "the index is not JSON: " + fault->why) + " (at byte " +
             std::to_string(fault->offset) + ")",
         {.subject = handler.subject()});
  }
  return std::move(handler).finish();
}

}  // namespace

std::optional<ShardIndex> read_plain_index(std::size_t nbytes, const RefillText& refill,
                                           const FileSeen& seen) {
  ShardIndexHandler handler(nbytes, seen);
  const auto refill_low = [&](PlainJson& json) {
    return json.rest().size() >= kLongestPlainEntry || refill(json);
  };
  if (!read_plain_document({}, handler, refill_low)) return std::nullopt;
  return std::move(handler).finish();
}

ShardIndex ShardIndex::parse(std::string_view json, const std::filesystem::path& path) {
  try {
    return parse_index(json);
  } catch (const Error& error) {
    throw error.with_context({}, path);
  }
}

}  // namespace safetensors
