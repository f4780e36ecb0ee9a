#include "schemes/ct_config.hpp"

#include "base/text.hpp"
#include "common/fail.hpp"
#include "config/json_section.hpp"

namespace safetensors::weights {
namespace {

constexpr std::int64_t kMaxBlockSize = 65'536;
constexpr std::size_t kMaxPatternBytes = 16'384;
constexpr std::size_t kMaxMatchedName = 1024;
// 100,000 modules with names of 60 bytes may be matched with patterns of 1.6 KB.
constexpr std::uint64_t kMaxSteps = 10'000'000'000;
constexpr std::string_view kPatternMark = "re:";
constexpr std::string_view kEveryModule = "Linear";

std::int64_t within(const Section& section, const Json& value, std::string_view key,
                    std::int64_t least, std::int64_t most, const std::filesystem::path& path) {
  const std::int64_t* number = value.as_int64();
  if (number == nullptr) section.refuse(key, "an integer", value.kind());
  if (*number < least || *number > most) {
    fail(Errc::config, path, key,
         std::to_string(*number) + " is not within " + std::to_string(least) + " and " +
             std::to_string(most));
  }
  return *number;
}

CtGroup read_group(const Json& json, const std::filesystem::path& path) {
  CtGroup group;
  const Section outer(json, path);
  group.format = outer.text({"format"}).value_or("");
  const Json* found = outer.find({"weights"}).value;
  if (found == nullptr) return group;
  if (found->as_object() == nullptr) outer.refuse("weights", "an object", found->kind());
  const Section weights(*found, path);
  const auto integer = [&](std::string_view key, std::int64_t least, std::int64_t most) {
    const Json* value = weights.find({key}).value;
    return value == nullptr ? std::optional<std::int64_t>()
                            : within(weights, *value, key, least, most, path);
  };
  if (const auto bits = integer("num_bits", 1, 8)) group.bits = static_cast<int>(*bits);
  if (const auto type = weights.text({"type"})) group.is_float = *type == "float";
  group.symmetric = weights.boolean("symmetric");
  group.strategy = weights.text({"strategy"}).value_or("");
  group.group_size = integer("group_size", -1, std::int64_t{1} << 30);
  if (group.group_size == 0) fail(Errc::config, path, "group_size", "it must not be 0");
  if (group.group_size == -1) group.group_size.reset();
  const std::span<const Json> sizes = weights.array("block_structure");
  if (sizes.size() == 2) {
    std::array<std::uint32_t, 2> block{};
    for (std::size_t i = 0; i < 2; ++i) {
      block[i] = static_cast<std::uint32_t>(
          within(weights, sizes[i], "block_structure", 1, kMaxBlockSize, path));
    }
    group.block_size = block;
  }
  return group;
}

}  // namespace

CtGroups::CtGroups(const Json& config, const std::filesystem::path& path) : path_(path) {
  const auto [groups, key] = Section(config, path).find({"config_groups"});
  if (groups == nullptr) return;
  if (groups->as_object() == nullptr)
    Section(config, path).refuse(key, "an object", groups->kind());
  std::map<std::string, std::size_t, std::less<>> patterns;
  std::size_t pattern_bytes = 0;
  for (const Json::Member& member : *groups->as_object()) {
    // A list has the targets of a preset, whose parameters only the writer knows.
    if (member.second.as_object() == nullptr) continue;
    const Section group(member.second, path);
    for (const Json& target : group.array("targets")) {
      const std::string* text = target.as_string();
      if (text == nullptr) group.refuse("targets", "a string", target.kind());
      if (text->starts_with(kPatternMark)) {
        pattern_bytes += text->size();
        if (pattern_bytes > kMaxPatternBytes) {
          fail(Errc::limit, path, "targets",
               "patterns of more than " + std::to_string(kMaxPatternBytes) + " bytes");
        }
        patterns[text->substr(kPatternMark.size())] = groups_.size();
      } else {
        names_[*text] = groups_.size();
      }
    }
    groups_.push_back(read_group(member.second, path));
  }
  if (groups_.size() < 2) return;
  for (const auto& [text, group] : patterns) {
    patterns_.push_back({text, NamePattern::parse(text), group});
  }
}

const CtGroup* CtGroups::find(std::string_view module) const {
  if (groups_.size() == 1) return groups_.data();
  const auto name = names_.find(module);
  if (name != names_.end()) return &groups_[name->second];
  if (module.size() > kMaxMatchedName && !patterns_.empty()) {
    fail(Errc::limit, path_, "targets",
         "patterns are not matched with a name of " + std::to_string(module.size()) + " bytes, " +
             std::to_string(kMaxMatchedName) + " are allowed");
  }
  for (const Pattern& pattern : patterns_) {
    if (!pattern.parsed) {
      fail(Errc::unsupported, path_, "targets",
           "the pattern `" + clipped(pattern.text) + "` has constructs that are not supported");
    }
    steps_ += (pattern.text.size() + 1) * (module.size() + 1);
    if (steps_ > kMaxSteps) {
      fail(Errc::limit, path_, "targets",
           "matching the patterns with the names of modules takes more than " + grouped(kMaxSteps) +
               " steps; reached at `" + clipped(module) + "`");
    }
    if (pattern.parsed->matches(module)) return &groups_[pattern.group];
  }
  const auto every = names_.find(kEveryModule);
  return every != names_.end() ? &groups_[every->second] : nullptr;
}

}  // namespace safetensors::weights
