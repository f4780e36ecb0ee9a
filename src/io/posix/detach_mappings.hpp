// Overwriting a file in place without changing the tensors that are mapped from it.
#pragma once

#include <filesystem>
#include <vector>

#include "io/file_writer.hpp"

namespace safetensors::io {

/// Content that does not depend on the file at `path`, which is about to be overwritten in place.
///
/// On Linux the constructor replaces every private mapping of that file in this process by a copy
/// of its memory at the same address: the content, and all other tensors that are mapped from the
/// file, keep their values. Other threads may read that memory during the replacement, but what
/// they write to it may be lost.
///
/// Other systems do not list a process's mappings. There the pieces of the content are copied, and
/// other tensors that are mapped from the file change with it.
///
/// Throws: Error kIo, before anything is overwritten, if there is not enough memory, if the file is
///   mapped in a way that cannot be replaced (shared mappings), or if the mappings cannot be
///   listed; what `interrupt` throws.
class DetachedContent {
 public:
  DetachedContent(const FileContent& content, const std::filesystem::path& path,
                  const Interrupt& interrupt);
  [[nodiscard]] const FileContent& content() const noexcept { return content_; }

 private:
  FileContent content_;
  std::vector<Buffer> copies_;
};

}  // namespace safetensors::io
