// The values behind PySafeSlice and TensorMeta.
#pragma once

#include <memory>
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

/// A copy of the header's entry for one tensor. Does not keep the file open.
class TensorMeta {
 public:
  explicit TensorMeta(const TensorInfo& info)
      : dtype_(info.dtype),
        shape_(info.shape.begin(), info.shape.end()),
        begin_(info.begin),
        end_(info.end) {}

  [[nodiscard]] py::object dtype() const { return to_str(dtype_); }
  [[nodiscard]] py::list shape() const { return to_list(shape_); }
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
