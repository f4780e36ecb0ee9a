#include "io/windows/open_file.hpp"

#include <cerrno>
#include <string_view>

#include "io/windows/handle.hpp"

namespace safetensors::io {
namespace {

std::wstring full_path(const std::filesystem::path& path) {
  const std::wstring& given = path.native();
  std::wstring full(given.size() + MAX_PATH, L'\0');
  for (int i = 0; i < 2; ++i) {
    const DWORD length =
        ::GetFullPathNameW(given.c_str(), static_cast<DWORD>(full.size()), full.data(), nullptr);
    if (length == 0) return given;
    const bool fits = length < full.size();
    full.resize(length);
    if (fits) return full;
  }
  return given;  // another thread has changed the current directory
}

}  // namespace

std::wstring system_path(const std::filesystem::path& path) {
  constexpr std::wstring_view kVerbatim = L"\\\\?\\";
  constexpr std::wstring_view kDevice = L"\\\\.\\";
  if (path.native().starts_with(kVerbatim)) return path.native();
  std::wstring full = full_path(path);
  if (full.starts_with(kVerbatim) || full.starts_with(kDevice)) return full;
  // Shorter ones work as they are, whatever file system or filter driver is behind them.
  if (full.size() < MAX_PATH - 12) return full;
  if (full.starts_with(L"\\\\")) return L"\\\\?\\UNC\\" + full.substr(2);
  return std::wstring(kVerbatim) + full;
}

bool names_device(const std::filesystem::path& path) {
  return full_path(path).starts_with(L"\\\\.\\");
}

Handle open_file(const std::filesystem::path& path, DWORD access, DWORD share, DWORD disposition,
                 DWORD flags) {
  return Handle(::CreateFileW(system_path(path).c_str(), access, share, nullptr, disposition, flags,
                              nullptr));
}

int open_errno(const std::filesystem::path& path) {
  const int os_error = last_errno();
  if (os_error != EACCES) return os_error;
  const DWORD attributes = ::GetFileAttributesW(system_path(path).c_str());
  const bool is_folder =
      attributes != INVALID_FILE_ATTRIBUTES && (attributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
  return is_folder ? EISDIR : os_error;
}

}  // namespace safetensors::io
