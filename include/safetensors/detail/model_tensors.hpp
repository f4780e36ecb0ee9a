// The tensors of a model's files. For this project's own bindings: it may change at any time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"
#include "safetensors/header.hpp"

namespace safetensors::detail {

/// Throws Error kTensorNotFound for a tensor that an index puts into a file without it.
[[noreturn]] SAFETENSORS_API void fail_absent(std::string_view name,
                                              const std::filesystem::path& file,
                                              const std::filesystem::path& index);

/// Returns a header's entry of each tensor that an index puts into its file, in the same order.
///
/// Throws: fail_absent() if the header lacks one.
[[nodiscard]] SAFETENSORS_API std::vector<const TensorInfo*> entries_of(
    const Header& header, std::span<const std::string_view> names,
    const std::filesystem::path& file, const std::filesystem::path& index);

/// Returns pointers to all entries of several files, sorted by name.
///
/// Throws: Error kDuplicateName, naming both files by `path_of`, if two files have the same name.
[[nodiscard]] SAFETENSORS_API std::vector<const TensorInfo*> sorted_entries(
    std::span<const std::span<const TensorInfo>> files,
    const std::function<std::filesystem::path(std::size_t file)>& path_of);

/// Returns which of these files has an entry that sorted_entries() returned.
class SAFETENSORS_API FileOfEntry {
 public:
  explicit FileOfEntry(std::span<const std::span<const TensorInfo>> files);
  [[nodiscard]] std::size_t operator()(const TensorInfo* entry) const noexcept;

 private:
  struct Range {
    const TensorInfo* begin;
    std::size_t file;
  };
  std::vector<Range> ranges_;  // sorted by address; none is empty
};

}  // namespace safetensors::detail
