// The index of a model in several files: which of them has which tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"

namespace safetensors {

/// Size limits of an index, in bytes and in distinct files.
inline constexpr std::uint64_t kMaxIndexSize = 100'000'000;
inline constexpr std::size_t kMaxIndexFiles = 100'000;

/// What a `*.safetensors.index.json` says. Immutable and thread safe.
///
/// Safe for untrusted input: reading takes at most 8 times the index's length in memory, and 64 MB;
/// files are named relative to the index's directory and lie below it.
class SAFETENSORS_API ShardIndex {
 public:
  /// Reads the index from a file.
  /// Throws Error: kIo, kNotRegularFile, kFileChanged, kHeaderTooLarge above kMaxIndexSize, and
  /// what parse() throws, with a text that names the file.
  [[nodiscard]] static ShardIndex read(const std::filesystem::path& path);
  /// Parses the text of an index. Values outside `weight_map` are ignored, but for `total_size`.
  /// Throws Error: kInvalidHeaderJson, kDuplicateName for a tensor that stands twice in it.
  [[nodiscard]] static ShardIndex parse(std::string_view json);

  /// The number of tensors, which are numbered in the order of their names.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  /// The name of a tensor. Valid while this object lives.
  [[nodiscard]] std::string_view name(std::size_t tensor) const noexcept {
    return {text_.data() + entries_[tensor].begin, entries_[tensor].size};
  }
  /// The position in files() of the file that has the tensor.
  [[nodiscard]] std::size_t file(std::size_t tensor) const noexcept {
    return entries_[tensor].file;
  }
  /// The paths of the distinct files, sorted; UTF-8, relative to the index's directory.
  [[nodiscard]] const std::vector<std::string>& files() const noexcept { return files_; }
  /// `metadata.total_size`, if it is an unsigned integer.
  [[nodiscard]] std::optional<std::uint64_t> total_size() const noexcept { return total_size_; }

 private:
  friend class ShardIndexHandler;
  struct Entry {
    std::uint32_t begin;  // of the name, in text_
    std::uint32_t size;
    std::uint32_t file;
  };

  std::vector<char> text_;  // names end to end
  std::vector<Entry> entries_;
  std::vector<std::string> files_;
  std::optional<std::uint64_t> total_size_;
};

}  // namespace safetensors
