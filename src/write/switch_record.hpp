// The content of the switch of a save: docs/format.md, "Switch".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safetensors {

/// Tells a file from another one that takes its place.
struct FileIdentity {
  std::uint64_t nbytes = 0;
  std::int64_t modified = 0;  ///< nanoseconds since 1970
  std::uint64_t inode = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// Files with their identities, in the order in which they were found.
using FileIdentities = std::vector<std::pair<std::string, FileIdentity>>;

/// What a complete switch says.
struct SwitchRecord {
  std::string name{};                     ///< of the model
  std::size_t shards = 0;                 ///< how many there are
  FileIdentities old{};                   ///< the files that the new model replaces or removes
  std::vector<std::uint64_t> inodes{};    ///< of the new files, in the order of switch_parts()
  std::vector<std::string> companions{};  ///< small files that are replaced with the model
};

/// Names in the private folder of a save.
inline constexpr std::string_view kSwitchPart = "switch";
inline constexpr std::string_view kIndexPart = "index";
inline constexpr std::string_view kSumsPart = "sums";
/// Returns the name of shard `number`, from 1 on.
[[nodiscard]] std::string shard_part(std::size_t number);
[[nodiscard]] std::string companion_part(std::string_view file);
/// Returns the names of the shards and of the index, if there is one.
[[nodiscard]] std::vector<std::string> switch_parts(std::size_t shards);
/// Returns the names in the folder of the model that switch_parts() will have.
[[nodiscard]] std::vector<std::string> switch_targets(std::string_view name, std::size_t shards);
/// Returns whether the private folder of a save may have a file of this name.
[[nodiscard]] bool is_switch_part(std::string_view file);

/// The largest switch that is written and read.
inline constexpr std::uint64_t kMaxSwitchSize = std::uint64_t{64} << 20;

/// Returns the text of a switch. Throws: Error kInvalidArgument if it is larger than that.
[[nodiscard]] std::string text_of_switch(const SwitchRecord& record);

/// Returns what a switch says; nothing if it is incomplete: no JSON.
///
/// stem: what the name of the private folder has of the model's name.
/// path: names the switch in errors.
/// Safe for untrusted input: takes time and memory in proportion to the text; names are checked.
/// Throws: Error kInvalidArgument for other content.
[[nodiscard]] std::optional<SwitchRecord> parse_switch(std::string_view text, std::string_view stem,
                                                       const std::filesystem::path& path);

}  // namespace safetensors
