#include "safetensors/element.hpp"

#include <cstdint>
#include <string>

#include "safetensors/error.hpp"

namespace safetensors::detail {
namespace {

std::string described(const TensorInfo& info) {
  const std::string_view dtype = name(info.dtype);
  return "tensor `" + std::string(info.name) + "` (" +
         (dtype.empty() ? "dtype " + std::to_string(static_cast<unsigned>(info.dtype))
                        : std::string(dtype)) +
         ")";
}

}  // namespace

void fail_type(const TensorInfo& info, std::string_view type) {
  fail(ErrorCode::kInvalidArgument,
       described(info) + " does not hold elements of type " + std::string(type));
}

void check_alignment(const TensorInfo& info, const void* bytes, std::size_t alignment) {
  if (reinterpret_cast<std::uintptr_t>(bytes) % alignment != 0) {
    fail(ErrorCode::kInvalidArgument, described(info) + " is not aligned to " +
                                          std::to_string(alignment) +
                                          " bytes in this file: copy its elements");
  }
}

void check_bools(const TensorInfo& info, std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    if (std::to_integer<unsigned>(byte) > 1) {
      fail(ErrorCode::kInvalidArgument, described(info) + " has a byte that is neither 0 nor 1 (" +
                                            std::to_string(std::to_integer<unsigned>(byte)) +
                                            "): copy its elements");
    }
  }
}

void check_size(const TensorInfo& info, std::uint64_t nbytes, std::uint64_t room) {
  if (nbytes != room) {
    fail(ErrorCode::kInvalidArgument, described(info) + " has " + std::to_string(nbytes) +
                                          " bytes, the destination " + std::to_string(room));
  }
}

void fail_byte_order(const TensorInfo& info) {
  fail(ErrorCode::kInvalidArgument,
       described(info) + " is little-endian, this machine is not: copy its elements");
}

}  // namespace safetensors::detail
