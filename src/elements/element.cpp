#include "safetensors/element.hpp"

#include <cstdint>
#include <string>

#include "base/text.hpp"
#include "format/dtype_text.hpp"
#include "safetensors/error.hpp"

namespace safetensors::detail {
namespace {

/// Throws Error kInvalidArgument, whose text is the tensor, its dtype and `why`.
[[noreturn]] void refuse(const TensorInfo& info, const std::string& why, File file) {
  const std::string dtype = (name(info.dtype).empty() ? "dtype " : "") + dtype_text(info.dtype);
  fail(ErrorCode::kInvalidArgument, "tensor `" + clipped(info.name) + "` (" + dtype + ") " + why,
       {.path = file == nullptr ? std::filesystem::path() : *file,
        .subject = std::string(info.name)});
}

}  // namespace

void fail_type(const TensorInfo& info, std::string_view type, File file) {
  refuse(info, "does not hold elements of type " + std::string(type), file);
}

void check_alignment(const TensorInfo& info, const void* bytes, std::size_t alignment, File file) {
  if (reinterpret_cast<std::uintptr_t>(bytes) % alignment != 0) {
    refuse(
        info,
        "is not aligned to " + std::to_string(alignment) + " bytes in this file: copy its elements",
        file);
  }
}

void check_bools(const TensorInfo& info, std::span<const std::byte> bytes, File file) {
  for (const std::byte byte : bytes) {
    if (std::to_integer<unsigned>(byte) > 1) {
      refuse(info,
             "has a byte that is neither 0 nor 1 (" +
                 std::to_string(std::to_integer<unsigned>(byte)) + "): copy its elements",
             file);
    }
  }
}

void check_size(const TensorInfo& info, std::uint64_t nbytes, std::uint64_t room, File file) {
  if (nbytes != room) {
    refuse(info, "has " + counted(nbytes, "byte") + ", the destination " + grouped(room), file);
  }
}

void fail_byte_order(const TensorInfo& info, File file) {
  refuse(info, "is little-endian, this machine is not: copy its elements", file);
}

}  // namespace safetensors::detail
