// Parses the text of sums.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/base64.hpp"
#include "base/json_document.hpp"
#include "base/parse_integer.hpp"
#include "base/text.hpp"
#include "format/below_folder.hpp"
#include "format/open_keys.hpp"
#include "safetensors/error.hpp"
#include "safetensors/sums.hpp"

namespace safetensors {
namespace {

[[noreturn]] void fail_sums(const std::string& why) {
  fail(ErrorCode::kInvalidHeaderJson, "Invalid sums: " + why);
}

std::string in_json_quotes(std::string_view text) { return '"' + clipped(text) + '"'; }

}  // namespace

/// Handles the events of read_json_document():
///
///     {"whole": [DIGEST, ...], "files": {PATH: {"size": N, ...}}, "tensors": {NAME: {...}}, ...}
///     depth 1   depth 2                 depth 2 depth 3                    depth 2 depth 3
///
/// and a tensor's "digest" is a list at depth 4. Values of unknown keys are skipped.
class SumsHandler : public JsonHandler {
 public:
  using Kind = JsonKind;

  explicit SumsHandler(std::string_view json) : JsonHandler(json) {}

  /// Takes a value, or the beginning of a list or an object.
  bool value(Kind kind, std::string_view text) {
    if (kind == Kind::kString && !check_text(text)) return false;
    if (skipped_ != 0) return true;
    switch (depth_) {
      case 0:
        return expect(kind == Kind::kObject, "the content", "an object");
      case 1:
        return section_value(kind, text);
      case 2:
        if (section_ == Section::kWhole) return add_digest(kind, text, whole_, "`whole`");
        return expect(kind == Kind::kObject, where(), "an object");
      case 3:
        return field_value(kind, text);
      default:
        return add_digest(kind, text, now_.digests, "`digest` of " + where());
    }
  }

  bool open(Kind kind) {
    if (kind == Kind::kObject) keys_.open();
    if (!value(kind, kind == Kind::kObject ? "an object" : "a list")) return false;
    ++depth_;
    return true;
  }

  bool key(std::string_view key) {
    if (!check_text(key)) return false;
    keys_.add(key);
    if (skipped_ != 0) return true;
    if (depth_ == 1) section_ = section_of(key);
    if (depth_ == 2) return begin_entry(key);
    if (depth_ == 3) field_ = field_of(key);
    return true;
  }

  bool close(Kind kind) {
    if (kind == Kind::kObject) {
      if (const std::optional<std::string> twice = keys_.close()) {
        return stop('"' + *twice + "\" occurs twice");
      }
    }
    --depth_;
    if (skipped_ > depth_) skipped_ = 0;
    return kind == Kind::kArray || skipped_ != 0 || depth_ != 2 || end_entry();
  }

  /// Checks the sums and returns them. Throws: Error kInvalidHeaderJson.
  Sums finish() && {
    if (!has_format_) fail_sums("`format` is not `safetensors-sums`");
    if (!has_version_) fail_sums("version null is unknown");
    if (!has_block_size_) fail_sums("there is no `block_size`");
    if (!has_files_) fail_sums("`files` is not an object");
    if (!has_tensors_) fail_sums("`tensors` is not an object");
    sort_tensors();
    number_files();
    check_whole();
    return std::move(sums_);
  }

 private:
  enum class Section : std::uint8_t {
    kOther,
    kFormat,
    kVersion,
    kBlockNbytes,
    kWhole,
    kFiles,
    kTensors
  };
  enum class Field : std::uint8_t { kOther, kSize, kHeader, kSha256, kFile, kDigest, kBlocks };

  static Section section_of(std::string_view key) {
    if (key == "format") return Section::kFormat;
    if (key == "version") return Section::kVersion;
    if (key == "block_size") return Section::kBlockNbytes;
    if (key == "whole") return Section::kWhole;
    if (key == "files") return Section::kFiles;
    if (key == "tensors") return Section::kTensors;
    return Section::kOther;
  }

  [[nodiscard]] Field field_of(std::string_view key) const {
    if (section_ == Section::kFiles) {
      if (key == "size") return Field::kSize;
      if (key == "header") return Field::kHeader;
      if (key == "sha256") return Field::kSha256;
    } else {
      if (key == "file") return Field::kFile;
      if (key == "digest") return Field::kDigest;
      if (key == "blocks") return Field::kBlocks;
    }
    return Field::kOther;
  }

  /// How errors name the file or tensor.
  [[nodiscard]] std::string where() const {
    return (section_ == Section::kFiles ? "file " : "tensor ") + in_json_quotes(now_.name);
  }
  bool expect(bool is_as_expected, const std::string& what, const char* type) {
    return is_as_expected || stop(what + " is not " + type);
  }
  bool skip(Kind kind) {
    if (kind == Kind::kObject || kind == Kind::kArray) skipped_ = depth_ + 1;
    return true;
  }

  bool section_value(Kind kind, std::string_view text) {
    const std::string shown =
        kind == Kind::kString ? in_json_quotes(text) : clipped(text.substr(0, 100));
    switch (section_) {
      case Section::kFormat:
        has_format_ = kind == Kind::kString && text == "safetensors-sums";
        return has_format_ || stop("`format` is not `safetensors-sums`");
      case Section::kVersion:
        has_version_ = kind == Kind::kNumber && text == "1";
        return has_version_ || stop("version " + shown + " is unknown");
      case Section::kBlockNbytes:
        has_block_size_ = kind == Kind::kNumber && text == std::to_string(kDigestBlockSize);
        return has_block_size_ ||
               stop("`block_size` is " + shown + " instead of " + std::to_string(kDigestBlockSize));
      case Section::kWhole:
        return expect(kind == Kind::kArray, "`whole`", "a list");
      case Section::kFiles:
        has_files_ = true;
        return expect(kind == Kind::kObject, "`files`", "an object");
      case Section::kTensors:
        has_tensors_ = true;
        return expect(kind == Kind::kObject, "`tensors`", "an object");
      case Section::kOther:
        break;
    }
    return skip(kind);
  }

  bool begin_entry(std::string_view name) {
    now_ = {.name = std::string(name)};
    if (section_ == Section::kFiles && !is_below_folder(name)) {
      if (name.size() > kMaxFileNameSize) {
        return stop("the name " + in_json_quotes(name) + " of a file has more than " +
                    grouped(kMaxFileNameSize) + " bytes");
      }
      return stop(in_json_quotes(name) + " is not a file below the folder of the model");
    }
    if (section_ == Section::kTensors) {
      sums_.entries_.push_back({.begin = static_cast<std::uint32_t>(sums_.text_.size()),
                                .size = static_cast<std::uint32_t>(name.size()),
                                .file = Sums::kNone});
      sums_.text_.insert(sums_.text_.end(), name.begin(), name.end());
    }
    return true;
  }

  bool field_value(Kind kind, std::string_view text) {
    switch (field_) {
      case Field::kSize:
        return read_size(kind, text);
      case Field::kHeader:
        now_.header = digest_of(kind, text);
        return now_.header || no_digest("`header` of " + where(), kind, text);
      case Field::kSha256:
        if (kind == Kind::kNull) return true;
        if (kind == Kind::kString) now_.sha256 = digest_of(kind, "sha256:" + std::string(text));
        return now_.sha256 ||
               stop(where() + ": `sha256` is not 64 hexadecimal digits in lower case");
      case Field::kFile:
        if (kind != Kind::kString) return stop(where() + ": its file is not in `files`");
        sums_.entries_.back().file = number_of(text);
        return true;
      case Field::kDigest:
        return expect(kind == Kind::kArray, "`digest` of " + where(), "a list");
      case Field::kBlocks:
        return kind == Kind::kNull || read_blocks(kind, text);
      case Field::kOther:
        break;
    }
    return skip(kind);
  }

  bool read_size(Kind kind, std::string_view text) {
    const auto size = parse_integer<std::uint64_t>(text);
    if (kind != Kind::kNumber || !size || *size >> 63 != 0) return stop(where() + " has no size");
    now_.size = size;
    return true;
  }

  bool read_blocks(Kind kind, std::string_view text) {
    if (kind != Kind::kString) return stop("`blocks` of " + where() + " is not a string");
    Sums::Entry& entry = sums_.entries_.back();
    entry.blocks = static_cast<std::uint32_t>(sums_.blocks_.size());
    std::uint64_t block = 0;
    unsigned count = 0;
    const bool is_base64 = decode_base64(text, [&](std::uint8_t byte) {
      block |= std::uint64_t{byte} << (8 * count);
      if (++count < 8) return;
      sums_.blocks_.push_back(block);
      block = 0;
      count = 0;
    });
    if (!is_base64) return stop("`blocks` of " + where() + " are not base64");
    if (count != 0) return stop("`blocks` of " + where() + " do not have 8 bytes each");
    entry.count = static_cast<std::uint32_t>(sums_.blocks_.size()) - entry.blocks;
    return true;
  }

  static std::optional<Digest> digest_of(Kind kind, std::string_view text) {
    if (kind != Kind::kString) return std::nullopt;
    try {
      return Digest::parse(text);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  bool no_digest(const std::string& what, Kind kind, std::string_view text) {
    return stop(what + ": " + (kind == Kind::kString ? in_json_quotes(text) : clipped(text)) +
                " is not a digest, or the second one");
  }
  bool add_digest(Kind kind, std::string_view text, std::vector<Digest>& digests,
                  const std::string& what) {
    const std::optional<Digest> digest = digest_of(kind, text);
    const bool is_new = digest && std::ranges::none_of(digests, [&](const Digest& each) {
                          return each.algorithm() == digest->algorithm();
                        });
    if (!is_new) return no_digest(what, kind, text);
    digests.push_back(*digest);
    return true;
  }

  bool end_entry() {
    if (section_ == Section::kFiles) {
      if (!now_.size) return stop(where() + " has no size");
      if (!now_.header) return stop("`header` of " + where() + ": null is not a digest");
      (void)sums_.add_file({now_.name, *now_.size, *now_.header, now_.sha256});
      return true;
    }
    if (sums_.entries_.back().file == Sums::kNone)
      return stop(where() + ": its file is not in `files`");
    if (now_.digests.empty()) return stop("`digest` of " + where() + ": there is no digest");
    for (const Digest& each : now_.digests) sums_.set(sums_.entries_.back(), each);
    return true;
  }

  std::uint32_t number_of(std::string_view path) {
    auto found = numbers_.find(path);
    if (found == numbers_.end()) {
      found = numbers_.emplace(path, static_cast<std::uint32_t>(numbers_.size())).first;
    }
    return found->second;
  }

  /// Replaces the numbers of the files in the order in which tensors name them by their positions.
  void number_files() {
    std::vector<std::uint32_t> positions(numbers_.size(), Sums::kNone);
    for (std::uint32_t i = 0; i < sums_.files_.size(); ++i) {
      const auto found = numbers_.find(sums_.files_[i].path);
      if (found != numbers_.end()) positions[found->second] = i;
    }
    for (Sums::Entry& entry : sums_.entries_) {
      entry.file = positions[entry.file];
      if (entry.file != Sums::kNone) continue;
      fail_sums("tensor " + in_json_quotes(sums_.name_of(entry)) + ": its file is not in `files`");
    }
  }

  void sort_tensors() {
    std::ranges::sort(sums_.entries_, {},
                      [&](const Sums::Entry& entry) { return sums_.name_of(entry); });
  }

  /// Otherwise a damaged digest in the sums would accuse a good tensor.
  void check_whole() {
    if (whole_.empty()) fail_sums("`whole`: there is no digest");
    std::optional<Digest> xxh3;
    for (const Digest& each : whole_) {
      (each.algorithm() == DigestAlgorithm::kSha256 ? sums_.whole_sha256_ : xxh3) = each;
    }
    bool is_right = xxh3.has_value() == sums_.has_whole(DigestAlgorithm::kXxh3_128) &&
                    sums_.whole_sha256_.has_value() == sums_.has_whole(DigestAlgorithm::kSha256);
    if (is_right && xxh3) is_right = *xxh3 == sums_.whole_xxh3();
    if (!is_right) {
      fail_sums("`whole` is not the digest of the tensors' digests: the sums are damaged");
    }
  }

  Sums sums_;
  format::OpenKeys keys_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;  // of the files that tensors name
  unsigned depth_ = 0;
  unsigned skipped_ = 0;  // the depth of the value that is being skipped, if any
  Section section_ = Section::kOther;
  Field field_ = Field::kOther;
  bool has_format_ = false;
  bool has_version_ = false;
  bool has_block_size_ = false;
  bool has_files_ = false;
  bool has_tensors_ = false;
  std::vector<Digest> whole_;
  struct {
    std::string name;
    std::optional<std::uint64_t> size = {};
    std::optional<Digest> header = {};
    std::optional<Digest> sha256 = {};
    std::vector<Digest> digests = {};
  } now_;  // the file or tensor that is being read
};

Sums Sums::parse(std::string_view json) {
  if (json.size() > kMaxSumsSize) fail_sums("more than " + grouped(kMaxSumsSize) + " bytes");
  SumsHandler handler(json);
  if (const auto fault = read_json_document(json, {}, handler)) {
    if (fault->kind == JsonFault::Kind::kRefused) fail_sums(handler.error());
    fail_sums("not JSON: " + fault->why + " (at byte " + std::to_string(fault->offset) + ")");
  }
  return std::move(handler).finish();
}

}  // namespace safetensors
