#include "c/guard.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "c/path.hpp"

namespace safetensors::c {
namespace {

/// Returns how many bytes of `text` fit, ending between characters.
std::size_t fitting(std::string_view text, std::size_t room) noexcept {
  std::size_t size = std::min(text.size(), room);
  if (size < text.size()) {  // 10xxxxxx continues a character
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  }
  return size;
}

/// Writes texts one after another, each with a NUL.
class TextWriter {
 public:
  explicit TextWriter(safetensors_error& error) noexcept : to_(error.text) {}

  /// Returns where the text begins.
  std::uint16_t put(std::string_view text) noexcept {
    const std::size_t begin = at_;
    std::copy(text.begin(), text.end(), to_ + begin);
    to_[begin + text.size()] = '\0';
    at_ = begin + text.size() + 1;
    return static_cast<std::uint16_t>(begin);
  }
  /// Returns where the text begins, or the NUL before it if it is empty or does not fit.
  std::uint16_t put_whole(std::string_view text) noexcept {
    if (text.empty() || text.size() > room()) return static_cast<std::uint16_t>(at_ - 1);
    return put(text);
  }
  /// Returns how many bytes fit beside their NUL.
  [[nodiscard]] std::size_t room() const noexcept { return at_ < kSize ? kSize - at_ - 1 : 0; }

 private:
  static constexpr std::size_t kSize = sizeof(safetensors_error::text);
  char* to_;
  std::size_t at_ = 0;
};

/// Returns what a callback stopped with, if that is the cause of the error.
const Stopped* stopped_by(const Error& error, Stopped& found) noexcept {
  if (!error.cause()) return nullptr;
  try {
    std::rethrow_exception(error.cause());
  } catch (const Stopped& stopped) {
    found = stopped;
    return &found;
  } catch (...) {
    return nullptr;
  }
}

}  // namespace

std::int32_t report(safetensors_error* error, std::int32_t code, const Report& what) noexcept {
  if (error == nullptr) return code;
  error->code = code;
  error->os_error = what.os_error;
  error->detail = what.detail;
  TextWriter writer(*error);
  writer.put(what.text.substr(0, fitting(what.text, writer.room())));
  error->path = writer.put_whole(what.path);
  error->subject = writer.put_whole(what.subject);
  return code;
}

std::int32_t report(safetensors_error* error, const Error& thrown) noexcept {
  Stopped stopped{};
  if (stopped_by(thrown, stopped) != nullptr) return report(error, stopped);
  std::string path;
  try {
    path = utf8_of(thrown.path());
  } catch (...) {  // no memory, or no text: the error goes without
    path.clear();
  }
  return report(error, static_cast<std::int32_t>(thrown.code()),
                {.text = thrown.what(),
                 .path = path,
                 .subject = thrown.subject(),
                 .os_error = thrown.os_error()});
}

std::int32_t report(safetensors_error* error, const Stopped& thrown) noexcept {
  return report(error, SAFETENSORS_STOPPED, {.text = thrown.what(), .detail = thrown.value});
}

}  // namespace safetensors::c
