#include "write/journal_files.hpp"

#include <cstddef>
#include <optional>
#include <set>
#include <utility>

#include "base/ascii_text.hpp"
#include "base/json_document.hpp"
#include "base/parse_integer.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/error.hpp"
#include "write/left_record.hpp"

namespace safetensors {
namespace {

/// Handles the events of read_json_document():
///
///     {FILE: [N, DIGEST], ...}
///     depth 1 2
class JournalFilesHandler : public JsonHandler {
 public:
  bool value(JsonKind kind, std::string_view text) {
    if (depth_ != 2) return false;
    HeaderIdentity& its = files_.back().second;
    if (count_ == 0 && kind == JsonKind::kNumber) {
      const auto nbytes = parse_integer<std::uint64_t>(text);
      its.nbytes = nbytes.value_or(0);
      ++count_;
      return nbytes.has_value();
    }
    if (count_ != 1 || kind != JsonKind::kString) return false;
    its.digest = text;
    ++count_;
    return true;
  }

  bool open(JsonKind kind) {
    if (kind != (depth_ == 0 ? JsonKind::kObject : JsonKind::kArray) || depth_ == 2) return false;
    ++depth_;
    count_ = 0;
    return true;
  }

  bool close(JsonKind) { return --depth_ == 0 || count_ == 2; }

  bool key(std::string_view text) {
    const std::optional<std::string> name = file_name_of(text);
    if (!name || !is_file_name(*name)) {
      return stop("it names " + repr_of(text) + ", which is not in its folder");
    }
    if (!names_.insert(*name).second) return false;
    files_.emplace_back(*name, HeaderIdentity());
    return true;
  }

  [[nodiscard]] JournalFiles take() noexcept { return std::move(files_); }

 private:
  JournalFiles files_;
  std::set<std::string, std::less<>> names_;
  std::size_t depth_ = 0;
  std::size_t count_ = 0;
};

}  // namespace

bool is_file_name(const std::string& text) {
  try {
    (void)detail::OwnName(text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::string text_of_journal_files(const JournalFiles& files) {
  std::string text = "{";
  const char* between = "";
  for (const auto& [name, identity] : files) {
    text += between;
    append_ascii_json(text, name);
    text += ": [" + std::to_string(identity.nbytes) + ", ";
    append_ascii_json(text, identity.digest);
    text += ']';
    between = ", ";
  }
  return text + "}";
}

JournalFiles parse_journal_files(std::string_view text, const std::filesystem::path& path) {
  JournalFilesHandler handler;
  const std::optional<JsonFault> fault = read_json_document(text, {}, handler);
  JournalFiles files = handler.take();
  if (fault || files.empty()) {
    refuse_to_follow(path, handler.error().empty() ? "it is not a journal" : handler.error());
  }
  return files;
}

}  // namespace safetensors
