// Reading the index of a model from its file.
#include "safetensors/shard_index.hpp"

#include <span>

#include "io/file_source.hpp"
#include "io/os_error.hpp"

namespace safetensors {
namespace {

/// The content of an index. Throws Error: kHeaderTooLarge, and what reading throws.
std::string read_text(const std::filesystem::path& path) {
  const std::unique_ptr<FileSource> source = FileSource::open(path);
  if (source->size() > kMaxIndexSize) {
    fail(ErrorCode::kHeaderTooLarge, "The index " + io::shown_path(path) + " is larger than " +
                                         std::to_string(kMaxIndexSize) + " bytes");
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
    fail(error.code(), "The index " + io::shown_path(path) + " " + error.what());
  }
}

}  // namespace safetensors
