// TensorSpec: a tensor to be written, given by the address of its bytes.
#pragma once

#include <string_view>
#include <vector>

#include "python.hpp"

namespace safetensors::python {

/// The dtype, shape and address of a tensor to be written.
class TensorSpec {
 public:
  /// `dtype` is torch's name ("float32") or that of ml_dtypes. They differ for F4 only, where the
  /// shape counts pairs of elements for torch's "float4_e2m1fn_x2".
  TensorSpec(py::handle dtype, py::handle shape, py::handle data_ptr, py::handle data_len);

  [[nodiscard]] Dtype dtype() const noexcept { return dtype_; }
  [[nodiscard]] const std::vector<std::uint64_t>& shape() const noexcept { return shape_; }
  [[nodiscard]] std::uint64_t data_ptr() const noexcept { return data_ptr_; }
  [[nodiscard]] std::uint64_t data_len() const noexcept { return data_len_; }
  /// Returns the tensor for the core.
  /// Lifetime: refers to `name` and this object, and to the memory at data_ptr(), which the Python
  ///   caller must keep until the save is done.
  [[nodiscard]] TensorData data(std::string_view name) const;

 private:
  Dtype dtype_;
  std::vector<std::uint64_t> shape_;
  std::uint64_t data_ptr_;
  std::uint64_t data_len_;
};

}  // namespace safetensors::python
