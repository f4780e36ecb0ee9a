// Which files a journal is about: its metadata `files` (docs/format.md, "Changes in place").
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace safetensors {

/// Tells a file that is changed in place from one that takes its place: both stay as they are while
/// the file is changed.
struct HeaderIdentity {
  std::uint64_t nbytes = 0;  ///< of the file
  std::string digest{};      ///< xxh3-128 of the length and the header, without the mark

  friend bool operator==(const HeaderIdentity&, const HeaderIdentity&) = default;
};

/// The files of a journal, by their names in its folder.
using JournalFiles = std::vector<std::pair<std::string, HeaderIdentity>>;

/// Returns the JSON that json.dumps of Python makes of the files.
[[nodiscard]] std::string text_of_journal_files(const JournalFiles& files);

/// Returns what the JSON says.
///
/// path: names the journal in errors.
/// Safe for untrusted input: takes time and memory in proportion to the text; names are checked.
/// Throws: Error kInvalidArgument for other content, also if a name leads out of the folder.
[[nodiscard]] JournalFiles parse_journal_files(std::string_view text,
                                               const std::filesystem::path& path);

/// Returns whether it may be the name of a file in a folder, and is no path.
[[nodiscard]] bool is_file_name(const std::string& text);

}  // namespace safetensors
