// The handle of the C interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/header.hpp"
#include "safetensors/model.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/safetensors.h"

/// An open file, the files of a model, or a header alone. Immutable.
struct safetensors_file {
 public:
  explicit safetensors_file(safetensors::SafeOpen open);
  /// is_whole: a folder or an index led to the model, so that it has all of its files.
  safetensors_file(safetensors::Model model, bool is_whole);
  /// Makes a file from a header alone: its tensors have no bytes.
  safetensors_file(safetensors::Header header, std::uint64_t header_nbytes);
  safetensors_file(const safetensors_file&) = delete;
  safetensors_file& operator=(const safetensors_file&) = delete;
  ~safetensors_file() = default;

  [[nodiscard]] std::uint32_t file_count() const noexcept;
  /// Returns the path of a file; nullptr if there is none.
  [[nodiscard]] const std::string* path(std::uint32_t number) const noexcept {
    return number < paths_.size() && !paths_[number].empty() ? &paths_[number] : nullptr;
  }
  /// Returns an open file; opens it first if need be.
  /// Throws: Error kInvalidArgument for a header alone; what Model::file() throws.
  /// Requires: number < file_count(), as in the next function.
  [[nodiscard]] const safetensors::SafeOpen& file(std::uint32_t number) const;
  /// Throws: what Model::file() throws.
  [[nodiscard]] const safetensors::Header& header(std::uint32_t number) const;
  /// Returns the length of a file's header in bytes. Throws: what header() throws.
  [[nodiscard]] std::uint64_t header_nbytes(std::uint32_t number) const;

  /// Returns whether a folder or an index led to the files, so that they are a whole model.
  [[nodiscard]] bool is_whole_model() const noexcept { return is_whole_; }

  /// Returns the files as a model, also a file alone. Throws: Error kInvalidArgument for a header
  /// alone.
  [[nodiscard]] safetensors::Model as_model() const;

  [[nodiscard]] std::size_t size() const noexcept;
  /// Requires: index < size(). Throws: what Model::tensor() throws.
  [[nodiscard]] safetensors::ModelTensor tensor(std::size_t index) const;
  /// Throws: Error kTensorNotFound; what Model::at() throws.
  [[nodiscard]] safetensors::ModelTensor at(std::string_view name) const;

  /// Throws: Error kInvalidArgument unless there is such a file, and its data section has the bytes
  ///   [begin, end); what header() throws.
  void check_range(std::uint32_t number, std::uint64_t begin, std::uint64_t end) const;
  /// Returns the bytes [begin, end) of the data section if the file is mapped or in memory, else
  /// null. Requires: check_range() has accepted them.
  [[nodiscard]] std::span<const std::byte> in_memory(std::uint32_t number, std::uint64_t begin,
                                                     std::uint64_t end) const;

  /// Copies tensors and parts of tensors. Throws: what Model::read() throws.
  void read(std::span<const safetensors::ModelRead> reads,
            const safetensors::Interrupt& interrupt) const;

 private:
  // One of these.
  std::optional<safetensors::SafeOpen> open_;
  std::optional<safetensors::Model> model_;
  std::optional<safetensors::Header> own_header_;

  bool is_whole_ = false;            // model_
  std::span<const std::byte> data_;  // of open_: the data section; null if not in memory
  std::uint64_t header_nbytes_ = 0;  // of own_header_
  std::vector<std::string> paths_;   // none of a header alone
};

namespace safetensors::c {

/// `begin` of a part whose bytes are not contiguous in the file.
inline constexpr std::uint64_t kScattered = UINT64_MAX;

/// Returns the dtype with this number. Throws: Error kUnsupportedDtype.
[[nodiscard]] Dtype dtype_of(std::int32_t number);

// A caller passes tensors back that a file returned, and may have changed any of their members. The
// functions that read therefore use the numbers only, and compare them with the file's header. They
// follow none of the pointers.

/// Returns where the bytes of `tensor`, or of a part of a tensor, are in its file, with the name
/// and dtype of the header's entry and without a shape.
/// Throws: Error kInvalidArgument (NULL, or not within a file) or kUnsupportedDtype; what
///   Model::file() throws.
[[nodiscard]] TensorInfo bytes_of(const safetensors_file& file, const safetensors_tensor* tensor);

/// Returns the header's entry of a whole tensor.
/// Throws: what bytes_of throws; Error kInvalidTensorInfo for a part of a tensor, or a changed
///   tensor.
[[nodiscard]] const TensorInfo& entry_of(const safetensors_file& file,
                                         const safetensors_tensor* tensor);

/// Returns a tensor of the caller, to be written.
/// Requires: its pointers point to as much memory as its sizes say.
/// Throws: Error kInvalidArgument (NULL) or kUnsupportedDtype.
[[nodiscard]] TensorInfo info_of(const safetensors_tensor* tensor);

}  // namespace safetensors::c
