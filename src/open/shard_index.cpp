// Reading an index from a file. format/shard_index.cpp parses it.
#include "open/shard_index.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "base/utf8.hpp"
#include "io/file_source.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

// The processor's cache holds a block until it is parsed. Memory for the whole text of a large
// index would take a third of the time of reading it, to be filled with zeros by the system.
constexpr std::size_t kIndexBlock = std::size_t{128} << 10;

/// The text of a file, in blocks.
class TextBlocks {
 public:
  explicit TextBlocks(const FileSource& source) : source_(source) {}

  /// A RefillText.
  bool refill(PlainJson& json) {
    if (offset_ == source_.size()) return true;
    const std::size_t left = json.rest().size();
    const std::size_t kept = left + held_back_;
    char* const begin = reinterpret_cast<char*>(block_.data());
    std::copy(filled_ - kept, filled_, begin);
    const std::size_t nbytes = static_cast<std::size_t>(
        std::min<std::uint64_t>(block_.size() - kept, source_.size() - offset_));
    source_.read_at(offset_, block_.bytes().subspan(kept, nbytes));
    offset_ += nbytes;
    std::string_view text(begin, kept + nbytes);
    filled_ = begin + text.size();
    // The last character may be cut off: then its bytes go to the next text.
    if (offset_ != source_.size()) {
      while (text.size() > left && (text.back() & 0x80) != 0) text.remove_suffix(1);
    }
    held_back_ = kept + nbytes - text.size();
    json = PlainJson(text);
    return text.size() > left && !find_invalid_utf8(text.substr(left));
  }

 private:
  const FileSource& source_;
  std::uint64_t offset_ = 0;
  Buffer block_{kIndexBlock};
  const char* filled_ = nullptr;  // the end of what was read to the block
  std::size_t held_back_ = 0;     // of the bytes before it
};

/// Reads an index; `seen` is that of read_index().
ShardIndex read_from(const FileSource& source, const std::filesystem::path& path,
                     const FileSeen& seen) {
  constexpr std::uint64_t kMinForBlocks = std::uint64_t{1} << 20;
  if (source.size() >= kMinForBlocks && source.size() <= kMaxIndexSize) {
    try {
      TextBlocks blocks(source);
      std::optional<ShardIndex> index = read_plain_index(
          static_cast<std::size_t>(source.size()),
          [&](PlainJson& json) { return blocks.refill(json); }, seen);
      if (index) return *std::move(index);
    } catch (const Error& error) {
      throw error.with_context({}, path);
    }
  }
  return ShardIndex::read(source, path);
}

}  // namespace

ShardIndex read_index(const std::filesystem::path& path, const FileSeen& seen) {
  const std::unique_ptr<const FileSource> source = FileSource::open(path);
  ShardIndex index = read_from(*source, path, seen);
  index.file_id_ = source->id();
  return index;
}

ShardIndex ShardIndex::read(const std::filesystem::path& path) { return read_index(path, {}); }

ShardIndex ShardIndex::read(const ByteSource& source, const std::filesystem::path& path) {
  // One byte more than parse() takes: a larger file is not read to its end.
  const Buffer text(
      static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kMaxIndexSize + 1)));
  source.read_at(0, text.bytes());
  return parse({reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()}, path);
}

}  // namespace safetensors
