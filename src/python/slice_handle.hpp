// The values behind PySafeSlice and TensorMeta.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "dtypes.hpp"
#include "load_tensors.hpp"
#include "open_file.hpp"
#include "python.hpp"

namespace safetensors::python {

/// One tensor of a file, of which parts are taken by indexing. Keeps the file open.
class SliceHandle {
 public:
  SliceHandle(std::shared_ptr<const OpenFile> file, std::string_view name)
      : info_(&file->file().at(name)), file_(std::move(file)) {}

  [[nodiscard]] const TensorInfo& info() const noexcept { return *info_; }
  [[nodiscard]] py::object get_item(py::handle index) const;
  /// Returns the number of rows, which get_item() counts. Raises TypeError for a 0-d tensor, as
  /// `what` of one.
  [[nodiscard]] std::uint64_t length(const char* what) const;

  /// Adjacent rows in memory.
  struct Rows {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    py::object array;        // of NumPy or torch
    bool is_shared = false;  // whether a row may be a view of the array
  };
  /// Returns rows from `begin` on: all of a mapped file, else 4 MiB or one.
  [[nodiscard]] Rows rows_from(std::uint64_t begin) const;
  /// Returns what get_item(row) does.
  [[nodiscard]] py::object row_of(const Rows& rows, std::uint64_t row) const;

 private:
  [[nodiscard]] py::object whole() const;
  [[nodiscard]] py::object index_whole(py::handle index) const;
  [[nodiscard]] py::object read_part(std::span<const ByteRuns> runs,
                                     std::span<const std::uint64_t> shape) const;
  [[nodiscard]] std::optional<LoadTarget> engine_target() const;
  [[nodiscard]] py::object load_part(std::vector<ByteRuns> runs,
                                     std::span<const std::uint64_t> shape,
                                     const LoadTarget& target) const;
  [[nodiscard]] py::object get_region(py::handle index) const;

  const TensorInfo* info_;
  std::shared_ptr<const OpenFile> file_;
};

/// Iterates over the rows of a tensor: the elements of a vector, the matrices of a cube. Reads many
/// at once, so that rows of a remote file do not take a request each. Keeps the file open.
///
/// Thread safety: many threads may use it at once, and get each row once.
class SliceRows {
 public:
  explicit SliceRows(const SliceHandle& slice)
      : slice_(slice), length_(slice.length("iteration over")) {}

  /// Returns the next row. Raises StopIteration after the last one, and after an error.
  [[nodiscard]] py::object next();

 private:
  using Rows = SliceHandle::Rows;
  [[nodiscard]] std::shared_ptr<const Rows> rows_with(std::uint64_t row);

  const SliceHandle slice_;
  const std::uint64_t length_;
  std::atomic<std::uint64_t> next_{0};
  std::mutex mutex_;  // held only to copy or swap rows_
  std::shared_ptr<const Rows> rows_;
};

/// A copy of the header's entry for one tensor. Does not keep the file open.
class TensorMeta {
 public:
  explicit TensorMeta(const TensorInfo& info)
      : dtype_(info.dtype),
        shape_(info.shape.begin(), info.shape.end()),
        begin_(info.begin),
        end_(info.end) {}
  TensorMeta(Dtype dtype, std::vector<std::uint64_t> shape, std::uint64_t begin, std::uint64_t end)
      : dtype_(dtype), shape_(std::move(shape)), begin_(begin), end_(end) {}

  [[nodiscard]] py::object dtype() const { return to_str(dtype_); }
  [[nodiscard]] py::list shape() const { return to_list(shape_); }
  [[nodiscard]] std::size_t ndim() const noexcept { return shape_.size(); }
  [[nodiscard]] std::uint64_t nbytes() const noexcept { return end_ - begin_; }
  [[nodiscard]] py::tuple data_offsets() const {
    return py::make_tuple(to_int(begin_), to_int(end_));
  }

 private:
  Dtype dtype_;
  std::vector<std::uint64_t> shape_;
  std::uint64_t begin_;
  std::uint64_t end_;
};

}  // namespace safetensors::python
