// Sources of a program that allocate nothing and count what is released.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "c_support.hpp"

namespace faults {

/// A file in memory. The context of its source.
struct MemoryFile {
  std::string name;
  std::string bytes;
  int opened = 0;
  int released = 0;

  [[nodiscard]] safetensors_source source() {
    auto result = test::sized<safetensors_source>();
    result.context = this;
    result.nbytes = bytes.size();
    result.read = [](void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                     safetensors_error*) -> std::int64_t {
      std::memcpy(to, static_cast<MemoryFile*>(context)->bytes.data() + offset, nbytes);
      return static_cast<std::int64_t>(nbytes);
    };
    result.release = [](void* context) { ++static_cast<MemoryFile*>(context)->released; };
    ++opened;
    return result;
  }
};

/// Files in memory. The context of their model.
class MemoryFiles {
 public:
  explicit MemoryFiles(std::vector<MemoryFile> files) : files_(std::move(files)) {
    for (const MemoryFile& file : files_) names_.push_back({file.name.data(), file.name.size()});
  }
  MemoryFiles(const MemoryFiles&) = delete;
  MemoryFiles& operator=(const MemoryFiles&) = delete;
  ~MemoryFiles() = default;

  [[nodiscard]] safetensors_model_source source() {
    released_ = 0;
    for (MemoryFile& file : files_) file.opened = file.released = 0;
    auto result = test::sized<safetensors_model_source>();
    result.context = this;
    result.names = names_.data();
    result.name_count = names_.size();
    result.open = [](void* context, const char* name, std::size_t name_size,
                     safetensors_source* source, safetensors_error* error) -> std::int32_t {
      for (MemoryFile& file : static_cast<MemoryFiles*>(context)->files_) {
        if (file.name != std::string_view(name, name_size)) continue;
        *source = file.source();
        return 0;
      }
      error->os_error = ENOENT;
      return -1;
    };
    result.release = [](void* context) { ++static_cast<MemoryFiles*>(context)->released_; };
    return result;
  }
  /// Returns whether the folder was released once, and each source as often as it was opened.
  [[nodiscard]] bool are_released() const {
    return released_ == 1 && std::ranges::all_of(files_, [](const MemoryFile& file) {
             return file.released == file.opened;
           });
  }

 private:
  std::vector<MemoryFile> files_;
  std::vector<safetensors_text> names_;
  int released_ = 0;
};

}  // namespace faults
