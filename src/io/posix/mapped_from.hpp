// Content that does not depend on the file it is written to.
#pragma once

#include <sys/types.h>

#include <vector>

#include "io/file_writer.hpp"

namespace safetensors::io {

/// The same content, with every piece copied whose memory may be a mapping of the file with that
/// inode number. The device is not compared: on layered file systems the two views of it differ,
/// and a copy too many does no harm.
class DetachedContent {
 public:
  DetachedContent(const FileContent& content, ino_t inode);
  [[nodiscard]] const FileContent& content() const noexcept { return content_; }

 private:
  FileContent content_;
  std::vector<Buffer> copies_;
};

}  // namespace safetensors::io
