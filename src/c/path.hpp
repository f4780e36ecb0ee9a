// Path arguments of the C interface.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "c/guard.hpp"

namespace safetensors::c {

/// Returns a path as text: UTF-8 on Windows, the bytes of the file name elsewhere.
inline std::string utf8_of(const std::filesystem::path& path) {
#if defined(_WIN32)
  const std::u8string text = path.u8string();
  return {text.begin(), text.end()};
#else
  return path.native();
#endif
}

/// Returns the name that errors have for a file without a path.
/// Throws: what text_of throws; Error kInvalidArgument if it contains a NUL.
inline std::filesystem::path label_of(const char* label, std::size_t size, const char* what) {
  const std::string_view text = text_of(label, size, what);
  if (text.find('\0') != std::string_view::npos) {
    fail(ErrorCode::kInvalidArgument, std::string(what) + " contains a NUL");
  }
#if defined(_WIN32)
  // A path made from char would be in the system's code page.
  return std::u8string(text.begin(), text.end());
#else
  return text;
#endif
}

/// Returns a path argument. Throws: what label_of throws; Error kInvalidArgument if it is empty.
inline std::filesystem::path path_of(const char* path, std::size_t size) {
  std::filesystem::path result = label_of(path, size, "path");
  if (result.empty()) fail(ErrorCode::kInvalidArgument, "path is empty");
  return result;
}

}  // namespace safetensors::c
