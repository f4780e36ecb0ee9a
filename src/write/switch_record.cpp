#include "write/switch_record.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <type_traits>

#include "base/ascii_text.hpp"
#include "base/display_path.hpp"
#include "base/json_document.hpp"
#include "base/parse_integer.hpp"
#include "base/text.hpp"
#include "format/model_names.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"
#include "safetensors/shard_plan.hpp"
#include "write/left_record.hpp"

namespace safetensors {
namespace {

constexpr char kCompanionStart = '+';

/// Handles the events of read_json_document(). A value of another form than the switch has is
/// refused at once: the beginning of a complete switch has none, however short it is.
///
///     {"shards": N, "old": {FILE: [N, N, N], ...}, "inodes": [N, ...], "companions": [FILE, ...]}
///     depth 1       depth 2       depth 3          depth 2              depth 2
class SwitchHandler : public JsonHandler {
 public:
  using Kind = JsonKind;

  bool value(Kind kind, std::string_view text) {
    if (depth_ == 0) return stop("it is not a switch file");
    if (depth_ == 1) return field_value(kind, text);
    switch (field_) {
      case Field::kOld:
        if (depth_ == 2 || numbers_ == 3 || kind != Kind::kNumber || !add_number(text)) {
          return refuse_identity();
        }
        return true;
      case Field::kInodes: {
        const auto inode = parse_integer<std::uint64_t>(text);
        are_inodes_ = are_inodes_ && kind == Kind::kNumber && inode;
        record_.inodes.push_back(inode.value_or(0));
        return true;
      }
      default: {
        const auto file = kind == Kind::kString ? file_name_of(text) : std::nullopt;
        if (!file || !detail::is_companion(*file)) {
          return stop("it names " + repr_of(text) + ", which is no companion of a model");
        }
        record_.companions.push_back(*file);
        return true;
      }
    }
  }

  bool open(Kind kind) {
    const bool is_fit = depth_ == 0 ? kind == Kind::kObject
                        : depth_ == 1
                            ? (field_ == Field::kOld && kind == Kind::kObject) ||
                                  ((field_ == Field::kInodes || field_ == Field::kCompanions) &&
                                   kind == Kind::kArray)
                            : depth_ == 2 && field_ == Field::kOld && kind == Kind::kArray;
    if (!is_fit) {
      (void)value(Kind::kNull, kind == Kind::kObject ? "{" : "[");
      return error().empty() ? stop("its list of inodes is not one of numbers") : false;
    }
    ++depth_;
    numbers_ = 0;
    return true;
  }

  bool close(Kind) {
    if (depth_ == 3 && numbers_ != 3) return refuse_identity();
    --depth_;
    return true;
  }

  bool key(std::string_view text) {
    if (depth_ == 2) {
      const auto file = file_name_of(text);
      if (!file) return stop("it names " + repr_of(text) + ", which is no file");
      if (!files_.insert(*file).second) return refuse_repeated(text);
      record_.old.emplace_back(*file, FileIdentity());
      return true;
    }
    const auto found = std::ranges::find(kFields, text);
    if (found == kFields.end()) return stop("it is not a switch file");
    field_ = static_cast<Field>(found - kFields.begin());
    bool& has = has_[static_cast<std::size_t>(field_)];
    if (has) return refuse_repeated(text);
    has = true;
    return true;
  }

  /// Returns the record of a document that was read to its end; nothing, with error(), if it is
  /// none.
  std::optional<SwitchRecord> finish(std::string_view stem) {
    const bool has_all = std::ranges::all_of(has_.begin(), has_.end() - 1, std::identity());
    if (!has_all) return none("it is not a switch file");
    if (!has_.back()) record_.name = stem;
    const std::string& name = record_.name;
    if (name.find('\0') != std::string::npos || detail::OwnName::stem_of(name) != stem) {
      return none("it is about " + repr_of(name) + ", and its folder about " + repr_of(stem));
    }
    for (const auto& [file, identity] : record_.old) {
      if (!detail::is_file_of(name, file)) {
        return none("it names " + repr_of(file) + ", which is no file of `" + name + "`");
      }
    }
    const std::size_t count = switch_parts(record_.shards).size();
    if (!are_inodes_ || record_.inodes.size() != count) {
      return none("its list of inodes is not one of " + std::to_string(count) + " numbers");
    }
    return std::move(record_);
  }

 private:
  enum class Field : std::uint8_t { kShards, kOld, kInodes, kCompanions, kName };
  static constexpr std::array<std::string_view, 5> kFields = {"shards", "old", "inodes",
                                                              "companions", "name"};

  bool field_value(Kind kind, std::string_view text) {
    switch (field_) {
      case Field::kShards: {
        const auto shards = parse_integer<std::size_t>(text);
        if (kind != Kind::kNumber || !shards || *shards < 1 || *shards > kMaxShards) {
          return stop("it has a bad number of shards: " + clipped(text.substr(0, 100)));
        }
        record_.shards = *shards;
        return true;
      }
      case Field::kOld:
        return stop("its list of old files is not an object");
      case Field::kInodes:
        are_inodes_ = false;  // the error says how many there should be
        return true;
      case Field::kCompanions:
        return stop("its list of companions is not a list");
      case Field::kName: {
        const auto name = kind == Kind::kString ? file_name_of(text) : std::nullopt;
        if (!name) return stop("it is about " + repr_of(text) + ", which is no name");
        record_.name = *name;
        return true;
      }
    }
    return false;
  }

  bool add_number(std::string_view text) {
    FileIdentity& its = record_.old.back().second;
    const auto set = [&](auto& field) {
      const auto number = parse_integer<std::remove_reference_t<decltype(field)>>(text);
      if (number) field = *number;
      return number.has_value();
    };
    const std::size_t at = numbers_++;
    return at == 0 ? set(its.nbytes) : at == 1 ? set(its.modified) : set(its.inode);
  }

  bool refuse_identity() {
    return stop("it has a bad size, time or inode of " + clipped(record_.old.back().first));
  }
  bool refuse_repeated(std::string_view key) {
    return stop("the JSON has the key " + repr_of(key) + " twice in one object");
  }
  std::optional<SwitchRecord> none(std::string why) {
    stop(std::move(why));
    return std::nullopt;
  }

  SwitchRecord record_;
  std::set<std::string, std::less<>> files_;
  std::array<bool, kFields.size()> has_ = {};
  std::size_t depth_ = 0;
  std::size_t numbers_ = 0;
  Field field_ = Field::kShards;
  bool are_inodes_ = true;
};

}  // namespace

std::string shard_part(std::size_t number) { return five_digits(number); }

std::string companion_part(std::string_view file) { return kCompanionStart + std::string(file); }

std::vector<std::string> switch_parts(std::size_t shards) {
  std::vector<std::string> parts;
  for (std::size_t i = 1; i <= shards; ++i) parts.push_back(shard_part(i));
  if (shards > 1) parts.emplace_back(kIndexPart);
  return parts;
}

std::vector<std::string> switch_targets(std::string_view name, std::size_t shards) {
  std::vector<std::string> files;
  for (std::size_t i = 1; i <= shards; ++i) files.push_back(shard_file_name(name, i, shards));
  if (shards > 1) files.push_back(index_file_name(name));
  return files;
}

bool is_switch_part(std::string_view file) {
  if (file.starts_with(kCompanionStart)) return detail::is_companion(file.substr(1));
  const bool is_shard =
      file.size() == 5 && file.find_first_not_of("0123456789") == std::string_view::npos;
  return is_shard || file == kSwitchPart || file == kIndexPart || file == kSumsPart;
}

std::string text_of_switch(const SwitchRecord& record) {
  std::string text = "{\"shards\": " + std::to_string(record.shards) + ", \"old\": {";
  const char* between = "";
  for (const auto& [file, identity] : record.old) {
    text += between;
    append_ascii_json(text, file);
    text += ": [" + std::to_string(identity.nbytes) + ", " + std::to_string(identity.modified) +
            ", " + std::to_string(identity.inode) + "]";
    between = ", ";
  }
  text += "}, \"inodes\": [";
  between = "";
  for (const std::uint64_t inode : record.inodes) {
    text += between + std::to_string(inode);
    between = ", ";
  }
  text += "], \"companions\": [";
  between = "";
  for (const std::string& file : record.companions) {
    text += between;
    append_ascii_json(text, file);
    between = ", ";
  }
  text += ']';
  if (detail::OwnName::stem_of(record.name) != record.name) {
    text += ", \"name\": ";
    append_ascii_json(text, record.name);
  }
  text += '}';
  if (text.size() > kMaxSwitchSize) {
    fail(ErrorCode::kInvalidArgument, "the names of the old and new files of model `" +
                                          clipped(record.name) + "` take " + grouped(text.size()) +
                                          " bytes, and a recovery reads at most " +
                                          grouped(kMaxSwitchSize));
  }
  return text;
}

std::optional<SwitchRecord> parse_switch(std::string_view text, std::string_view stem,
                                         const std::filesystem::path& path) {
  SwitchHandler handler;
  const std::optional<JsonFault> fault = read_json_document(text, {.allows_nan = true}, handler);
  if (fault && fault->kind == JsonFault::Kind::kSyntax) return std::nullopt;
  if (fault)
    refuse_to_follow(path, fault->why.empty() ? handler.error() : "the JSON is " + fault->why);
  std::optional<SwitchRecord> record = handler.finish(stem);
  if (!record) refuse_to_follow(path, handler.error());
  return record;
}

}  // namespace safetensors
