// Reading an index from a file. format/shard_index.cpp parses it.
#include "safetensors/shard_index.hpp"

#include <algorithm>

#include "io/file_source.hpp"
#include "safetensors/buffer.hpp"

namespace safetensors {

ShardIndex ShardIndex::read(const std::filesystem::path& path) {
  return read(*FileSource::open(path), path);
}

ShardIndex ShardIndex::read(const ByteSource& source, const std::filesystem::path& path) {
  // One byte more than parse() takes: a larger file is not read to its end.
  const Buffer text(
      static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), kMaxIndexSize + 1)));
  source.read_at(0, text.bytes());
  return parse({reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()}, path);
}

}  // namespace safetensors
