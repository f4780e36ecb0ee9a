#include "safetensors/tensor_view.hpp"

#include <cstdint>

namespace safetensors {
namespace {

std::string described(const TensorView& view) {
  return "tensor `" + std::string(view.name) + "` (" + std::string(name(view.dtype)) + ")";
}

}  // namespace

void TensorView::check_type(bool holds_it) const {
  if (!holds_it) {
    fail(ErrorCode::kInvalidArgument, described(*this) + " does not hold elements of that type");
  }
}

void TensorView::check_alignment(std::size_t alignment) const {
  if (reinterpret_cast<std::uintptr_t>(bytes_.data()) % alignment != 0) {
    fail(ErrorCode::kInvalidArgument, described(*this) + " is not aligned to " +
                                          std::to_string(alignment) +
                                          " bytes in this file: use copy_to");
  }
}

void TensorView::fail_byte_order() const {
  fail(ErrorCode::kInvalidArgument,
       described(*this) + " is little-endian, this machine is not: use copy_to");
}

void TensorView::fail_size(std::size_t nbytes) const {
  fail(ErrorCode::kInvalidArgument, described(*this) + " has " + std::to_string(bytes_.size()) +
                                        " bytes, the destination " + std::to_string(nbytes));
}

}  // namespace safetensors
