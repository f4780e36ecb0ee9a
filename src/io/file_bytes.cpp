#include "safetensors/file_bytes.hpp"

#include <utility>

#include "io/file_source.hpp"

namespace safetensors {

FileBytes open_bytes(const std::filesystem::path& path, bool map) {
  std::unique_ptr<FileSource> file = FileSource::open(path);
  // The system cannot map zero bytes.
  std::shared_ptr<const MappedFile> mapping = map && file->size() != 0 ? file->map() : nullptr;
  return {std::move(file), std::move(mapping)};
}

}  // namespace safetensors
