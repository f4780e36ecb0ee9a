#include "c/guard.hpp"

#include <algorithm>
#include <cstring>

namespace safetensors::c {

std::int32_t report(safetensors_error* error, std::int32_t code, int os_error,
                    std::string_view text) noexcept {
  if (error == nullptr) return code;
  error->code = code;
  error->os_error = os_error;
  std::size_t size = std::min(text.size(), sizeof error->text - 1);
  if (size < text.size()) {  // truncate between characters: 10xxxxxx continues one
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  }
  std::memcpy(error->text, text.data(), size);
  error->text[size] = '\0';
  return code;
}

}  // namespace safetensors::c
