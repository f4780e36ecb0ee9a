// Recognising files of other formats, for error texts.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace safetensors {

namespace detail {

struct Kind {
  std::string_view start;
  std::string_view hint;
};

inline constexpr std::array kKinds = {
    Kind{"version https://git-lfs",
         "This is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"},
    Kind{"PK\x03\x04", "This is a zip archive, as torch.save writes (.pt, .bin) or NumPy (.npz)"},
    Kind{"GGUF", "This is a GGUF file"},
    // "ggml" and so on, reversed: they are written as little-endian 32-bit numbers.
    Kind{"lmgg", "This is a GGML file, older than GGUF: convert the model again"},
    Kind{"fmgg", "This is a GGML file (ggmf), older than GGUF: convert the model again"},
    Kind{"tjgg", "This is a GGML file (ggjt), older than GGUF: convert the model again"},
    Kind{"algg", "This is a GGML adapter (ggla), older than GGUF: convert the adapter again"},
    Kind{"\x93NUMPY", "This is a NumPy .npy file"},
    Kind{"\x89HDF\r\n", "This is an HDF5 file"},
    Kind{"\x1f\x8b", "This is gzip-compressed: decompress it first"},
    Kind{"\x28\xb5\x2f\xfd", "This is zstd-compressed: decompress it first"},
    Kind{"\x80\x02", "This is a Python pickle, as older torch.save writes"},
    Kind{"\x80\x03", "This is a Python pickle"},
    Kind{"\x80\x04", "This is a Python pickle"},
    Kind{"\x80\x05", "This is a Python pickle"},
};

inline bool is_html(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  std::string lower(text.substr(0, 14));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower.starts_with("<!doctype html") || lower.starts_with("<html");
}

}  // namespace detail

/// Returns a sentence for an error text, beginning with ". ", if `start`, the first bytes of a
/// file, belong to another well-known format; else an empty string.
[[nodiscard]] inline std::string hint_for_foreign_file(std::span<const std::byte> start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  for (const detail::Kind& kind : detail::kKinds) {
    if (text.starts_with(kind.start)) return ". " + std::string(kind.hint);
  }
  if (detail::is_html(text))
    return ". This is an HTML page: the download brought an error or login page";
  if (text.starts_with('{')) {
    return ". This is JSON text: of a sharded model, open the files that the index names";
  }
  return {};
}

}  // namespace safetensors
