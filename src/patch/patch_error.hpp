// Errors about a patch file: their texts begin with its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "safetensors/dtype.hpp"
#include "safetensors/error.hpp"

namespace safetensors::patch {

/// Returns "PATH: ", nothing for a file without a name.
[[nodiscard]] inline std::string prefix_of(const std::filesystem::path& path) {
  return path.empty() ? std::string() : display_path(path) + ": ";
}

/// Returns a dtype and a shape, such as "F32 [2, 3]".
[[nodiscard]] inline std::string described(Dtype dtype, std::span<const std::uint64_t> shape) {
  return std::string(name(dtype)) + " " + shown(shape);
}

/// Throws an error about a patch file as a whole.
[[noreturn]] inline void fail_file(ErrorCode code, const std::filesystem::path& path,
                                   const std::string& what, std::string_view subject = {}) {
  fail(code, prefix_of(path) + what, {.path = path, .subject = std::string(subject)});
}

/// Throws an error about a tensor, or another entry, of a patch file.
[[noreturn]] inline void fail_tensor(ErrorCode code, const std::filesystem::path& path,
                                     std::string_view tensor, const std::string& what) {
  fail_file(code, path, "tensor `" + clipped(tensor) + "`: " + what, tensor);
}

}  // namespace safetensors::patch
