#include <string>

#include "io/os_error.hpp"
#include "io/windows/handle.hpp"

namespace safetensors::io {

std::string shown_path(const std::filesystem::path& path) {
  const std::wstring& wide = path.native();
  // Not path.u8string(): that throws over half a surrogate pair, which a file name may hold.
  const auto convert = [&](char* to, int room) {
    return ::WideCharToMultiByte(CP_UTF8, 0, wide.data(), static_cast<int>(wide.size()), to, room,
                                 nullptr, nullptr);
  };
  std::string text(static_cast<std::size_t>(convert(nullptr, 0)), '\0');
  (void)convert(text.data(), static_cast<int>(text.size()));
  return text;
}

}  // namespace safetensors::io
