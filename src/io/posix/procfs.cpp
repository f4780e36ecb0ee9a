#include "io/posix/procfs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "io/posix/fd.hpp"

namespace safetensors::io {

std::optional<std::string> read_kernel_file(const char* path) {
  Fd fd;
  while (!fd.is_open()) {
    fd = Fd(::open(path, O_RDONLY | O_CLOEXEC));
    if (!fd.is_open() && errno != EINTR) return std::nullopt;
  }
  // In steps: the kernel reports a size of 0.
  constexpr std::size_t kStep = std::size_t{64} << 10;
  std::string text;
  std::size_t used = 0;
  for (;;) {
    if (text.size() - used < kStep) text.resize(std::max(2 * text.size(), kStep));
    const ::ssize_t got = ::read(fd.get(), text.data() + used, text.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) break;
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  return text;
}

std::string_view next_token(std::string_view& text) noexcept {
  constexpr std::string_view kSpace = " \t\n";
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(kSpace));
  text.remove_prefix(word.size());
  return word;
}

}  // namespace safetensors::io
