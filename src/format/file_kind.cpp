#include "safetensors/file_kind.hpp"

#include <algorithm>
#include <array>

namespace safetensors {
namespace {

struct ForeignKind {
  std::string_view start;
  FileKind kind;
};

constexpr FileKind kPickle = {
    "pickle", "a Python pickle: `safetensors convert` reads it if torch.save wrote it"};

// GGML's magic numbers are words of the machine that wrote them: "ggml" and so on, backwards.
constexpr std::array kForeignKinds = {
    ForeignKind{"version https://git-lfs",
                {"git-lfs-pointer",
                 "a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"}},
    ForeignKind{"PK\x03\x04",
                {"zip",
                 "a zip archive, as torch.save writes (.pt, .bin) or NumPy (.npz): `safetensors "
                 "convert` reads it"}},
    ForeignKind{
        "GGUF",
        {"gguf",
         "a GGUF file: open_weights, `safetensors ls` and `safetensors convert` read local ones"}},
    ForeignKind{"lmgg", {"ggml", "a GGML file, older than GGUF: convert the model again"}},
    ForeignKind{"fmgg", {"ggml", "a GGML file (ggmf), older than GGUF: convert the model again"}},
    ForeignKind{"tjgg", {"ggml", "a GGML file (ggjt), older than GGUF: convert the model again"}},
    ForeignKind{"algg",
                {"ggml", "a GGML adapter (ggla), older than GGUF: convert the adapter again"}},
    ForeignKind{"\x93NUMPY", {"npy", "a NumPy .npy file: numpy.load reads it"}},
    ForeignKind{"\x89HDF\r\n", {"hdf5", "an HDF5 file"}},
    ForeignKind{"\x1f\x8b", {"compressed", "gzip-compressed: decompress it first"}},
    ForeignKind{"\x28\xb5\x2f\xfd", {"compressed", "zstd-compressed: decompress it first"}},
    ForeignKind{
        "\x80\x02",
        {"pickle", "a Python pickle, as older torch.save writes: `safetensors convert` reads it"}},
    ForeignKind{"\x80\x03", kPickle},
    ForeignKind{"\x80\x04", kPickle},
    ForeignKind{"\x80\x05", kPickle},
};
constexpr FileKind kHtml = {"html", "an HTML page: the download brought an error or login page"};
constexpr FileKind kJson = {
    "json", "JSON text: load_files loads the files that the index of a model names"};

bool is_html(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  std::string lower(text.substr(0, 14));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return lower.starts_with("<!doctype html") || lower.starts_with("<html");
}

}  // namespace

std::optional<FileKind> foreign_file_kind(std::span<const std::byte> start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  for (const ForeignKind& row : kForeignKinds) {
    if (text.starts_with(row.start)) return row.kind;
  }
  if (is_html(text)) return kHtml;
  if (text.starts_with('{')) return kJson;
  return std::nullopt;
}

std::string foreign_file_hint(std::span<const std::byte> start) {
  const std::optional<FileKind> kind = foreign_file_kind(start);
  return kind ? ". This is " + std::string(kind->description) : std::string();
}

}  // namespace safetensors
