#include "format/file_kind.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace safetensors::format {
namespace {

using std::string_view_literals::operator""sv;

struct Kind {
  std::string_view start;
  std::string_view hint;
};

constexpr std::array kKinds = {
    Kind{"version https://git-lfs"sv,
         "This is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"sv},
    Kind{"PK\x03\x04"sv,
         "This is a zip archive, as torch.save writes (.pt, .bin) or NumPy (.npz)"sv},
    Kind{"GGUF"sv, "This is a GGUF file"sv},
    Kind{"\x93NUMPY"sv, "This is a NumPy .npy file"sv},
    Kind{"\x89HDF\r\n"sv, "This is an HDF5 file"sv},
    Kind{"\x1f\x8b"sv, "This is gzip-compressed: decompress it first"sv},
    Kind{"\x28\xb5\x2f\xfd"sv, "This is zstd-compressed: decompress it first"sv},
    Kind{"\x80\x02"sv, "This is a Python pickle, as older torch.save writes"sv},
    Kind{"\x80\x03"sv, "This is a Python pickle"sv},
    Kind{"\x80\x04"sv, "This is a Python pickle"sv},
    Kind{"\x80\x05"sv, "This is a Python pickle"sv},
};

bool is_html(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  std::string lower(text.substr(0, 14));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower.starts_with("<!doctype html") || lower.starts_with("<html");
}

}  // namespace

std::string hint_for_foreign_file(std::span<const std::byte> start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  for (const Kind& kind : kKinds) {
    if (text.starts_with(kind.start)) return ". " + std::string(kind.hint);
  }
  if (is_html(text)) return ". This is an HTML page: the download brought an error or login page";
  if (text.starts_with('{')) {
    return ". This is JSON text: of a sharded model, open the files that the index names";
  }
  return {};
}

}  // namespace safetensors::format
