// The index of a model that is split into several files: which file holds which tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/export.hpp"
#include "safetensors/file_id.hpp"

namespace safetensors {

class ByteSource;

/// Size limits of an index, in bytes and in distinct files.
inline constexpr std::uint64_t kMaxIndexSize = 100'000'000;
inline constexpr std::size_t kMaxIndexFiles = 100'000;

/// The content of a `*.safetensors.index.json`.
///
/// Safe for untrusted input: parsing takes at most 64 MB and 8 times the index's length in memory;
///   file names are relative to the index's directory and cannot lead out of it.
/// Thread safety: immutable, so any number of threads may use one.
class SAFETENSORS_API ShardIndex {
 public:
  /// Reads the index from a file.
  ///
  /// Throws: Error kIo, kNotRegularFile, kFileChanged; what parse() throws.
  [[nodiscard]] static ShardIndex read(const std::filesystem::path& path);
  /// Reads the index from a source, which errors call `path`. Throws: what read_at and parse()
  /// throw.
  [[nodiscard]] static ShardIndex read(const ByteSource& source,
                                       const std::filesystem::path& path = {});
  /// Parses the text of an index, which errors call `path`. Ignores values outside `weight_map`,
  /// except `total_size`.
  ///
  /// Throws: Error kHeaderTooLarge (above kMaxIndexSize), kInvalidHeaderJson, or kDuplicateName (a
  ///   tensor occurs twice).
  [[nodiscard]] static ShardIndex parse(std::string_view json,
                                        const std::filesystem::path& path = {});

  /// Returns the number of tensors. They are numbered in the order of their names.
  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  /// Returns the name of a tensor. Valid while the index lives.
  [[nodiscard]] std::string_view name(std::size_t tensor) const noexcept {
    return {text_.data() + entries_[tensor].begin, entries_[tensor].size};
  }
  /// Returns the position in files() of the file that holds the tensor.
  [[nodiscard]] std::size_t file(std::size_t tensor) const noexcept {
    return entries_[tensor].file;
  }
  /// Returns the paths of the distinct files, sorted; UTF-8, relative to the index's directory, and
  /// without "./" before them.
  [[nodiscard]] const std::vector<std::string>& files() const noexcept { return files_; }
  /// Returns `metadata.total_size`, if it is an unsigned integer.
  [[nodiscard]] std::optional<std::uint64_t> total_size() const noexcept { return total_size_; }
  /// Returns which file was read; nothing if the index was read from a source, or parsed.
  [[nodiscard]] const std::optional<FileId>& file_id() const noexcept { return file_id_; }

 private:
  friend class ShardIndexHandler;
  friend ShardIndex read_index(const std::filesystem::path& path,
                               const std::function<void(const std::string& file)>& seen);
  struct Entry {
    std::uint32_t begin;  // of the name, in text_
    std::uint32_t size;
    std::uint32_t file;
  };

  std::vector<char> text_;  // names end to end
  std::vector<Entry> entries_;
  std::vector<std::string> files_;
  std::optional<std::uint64_t> total_size_;
  std::optional<FileId> file_id_;
};

}  // namespace safetensors
