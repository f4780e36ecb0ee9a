#include "gguf/file.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>
#include <variant>

#include "common/fail.hpp"

namespace safetensors::weights {
namespace {

// Enough for most headers without a tokenizer, and as fast to read as one page.
constexpr std::uint64_t kFirstStep = 64 << 10;

/// Returns the first `nbytes` of the source. `known` are those that were read before.
std::shared_ptr<const safetensors::Buffer> read_more(const ByteSource& source, std::uint64_t nbytes,
                                                     std::span<const std::byte> known) {
  const auto more = std::make_shared<safetensors::Buffer>(static_cast<std::size_t>(nbytes));
  if (!known.empty()) std::memcpy(more->data(), known.data(), known.size());
  source.read_at(known.size(), more->bytes().subspan(known.size()));
  return more;
}

}  // namespace

GgufHeader read_gguf_header(const ByteSource& source, const std::filesystem::path& path,
                            const GgufOptions& options) {
  GgufInput input{.available = {},
                  .file_nbytes = source.size(),
                  .path = path,
                  .limits = options.limits,
                  .allow_gaps = options.allow_gaps,
                  .owner = nullptr};
  for (std::uint64_t nbytes = kFirstStep;; nbytes *= 2) {
    const auto bytes =
        read_more(source, std::min({nbytes, input.file_nbytes, options.limits.header_nbytes}),
                  input.available);
    input.available = bytes->bytes();
    input.owner = bytes;  // releases the shorter read
    auto parsed = parse_gguf_header(input);
    if (auto* const header = std::get_if<GgufHeader>(&parsed)) return std::move(*header);
    assert(bytes->size() < input.file_nbytes);
  }
}

GgufFile::GgufFile(const Files& files, const std::filesystem::path& path,
                   const GgufOptions& options)
    : path_(path) {
  with_error_context(path_, {}, [&] {
    file_ = files.open(path_, options.mmap);
    header_ = read_gguf_header(*file_.source, path_, options);
  });
}

StoredBytes GgufFile::bytes(const GgufTensor& tensor, std::uint64_t begin, std::uint64_t end,
                            const Interrupt& interrupt) const {
  assert(begin <= end && end <= tensor.nbytes);
  const bool is_mapped = file_.mapping != nullptr;
  const std::span<const std::byte> all =
      is_mapped ? file_.mapping->bytes() : file_.source->memory();
  if (!all.empty()) {
    const std::span<const std::byte> bytes = all.subspan(
        static_cast<std::size_t>(tensor.offset + begin), static_cast<std::size_t>(end - begin));
    if (is_mapped && is_truncated(bytes)) {
      fail(Errc::io, path_, tensor.name, "the file is shorter than when it was opened",
           tensor.offset + begin);
    }
    if (is_mapped) return {bytes, file_.mapping, true};
    return {bytes, file_.source, true};
  }
  auto memory = with_error_context(path_, tensor.name, [&] {
    return std::make_shared<safetensors::Buffer>(static_cast<std::size_t>(end - begin));
  });
  read(tensor, begin, memory->bytes(), interrupt);
  const std::span<const std::byte> bytes = memory->bytes();
  return {bytes, std::move(memory), false};
}

void GgufFile::read(const GgufTensor& tensor, std::uint64_t begin, std::span<std::byte> to,
                    const Interrupt& interrupt) const {
  assert(begin <= tensor.nbytes && to.size() <= tensor.nbytes - begin);
  with_error_context(path_, tensor.name, [&] {
    const ReadPiece piece{tensor.offset + begin, to};
    read_all(*file_.source, {&piece, 1}, interrupt);
  });
}

}  // namespace safetensors::weights
