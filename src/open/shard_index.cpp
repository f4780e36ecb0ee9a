// Reading an index from a file. format/shard_index.cpp parses it.
#include "safetensors/shard_index.hpp"

#include <span>

#include "io/file_source.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

/// Returns the text of an index. Throws: Error kHeaderTooLarge; what reading throws.
std::string read_text(const std::filesystem::path& path) {
  const std::unique_ptr<FileSource> source = FileSource::open(path);
  if (source->size() > kMaxIndexSize) {
    fail(ErrorCode::kHeaderTooLarge,
         "the index is larger than " + std::to_string(kMaxIndexSize) + " bytes", {.path = path});
  }
  std::string text(static_cast<std::size_t>(source->size()), '\0');
  source->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

ShardIndex ShardIndex::read(const std::filesystem::path& path) {
  const std::string text = read_text(path);
  try {
    return parse(text);
  } catch (const Error& error) {
    throw error.with_context({}, path);
  }
}

}  // namespace safetensors
