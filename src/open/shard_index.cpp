// Reading an index from a file. format/shard_index.cpp parses it.
#include "safetensors/shard_index.hpp"

#include "io/file_source.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

/// Returns the text of an index. Throws: Error kHeaderTooLarge; what reading throws.
Buffer read_text(const std::filesystem::path& path) {
  const std::unique_ptr<FileSource> source = FileSource::open(path);
  if (source->size() > kMaxIndexSize) {
    fail(ErrorCode::kHeaderTooLarge,
         "the index is larger than " + std::to_string(kMaxIndexSize) + " bytes", {.path = path});
  }
  Buffer text(static_cast<std::size_t>(source->size()));
  source->read_at(0, text.bytes());
  return text;
}

}  // namespace

ShardIndex ShardIndex::read(const std::filesystem::path& path) {
  const Buffer text = read_text(path);
  try {
    return parse({reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()});
  } catch (const Error& error) {
    throw error.with_context({}, path);
  }
}

}  // namespace safetensors
