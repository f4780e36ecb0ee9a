#include "open/read_header.hpp"

#include <algorithm>
#include <cstring>

#include "format/prologue.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

Buffer read_prologue(const ByteSource& source) {
  Buffer start(
      static_cast<std::size_t>(std::min<std::uint64_t>(source.size(), source.cost().first_nbytes)));
  source.read_at(0, start.bytes());
  const std::uint64_t length = format::read_header_length(
      start.bytes().first(std::min(start.size(), format::kStartSize)), source.size());
  const auto nbytes = static_cast<std::size_t>(kLengthSize + length);
  if (nbytes <= start.size()) return start;
  Buffer whole(nbytes);
  std::memcpy(whole.data(), start.data(), start.size());
  source.read_at(start.size(), whole.bytes().subspan(start.size()));
  return whole;
}

ReadHeader parse_prologue(std::span<const std::byte> start, std::uint64_t nbytes) {
  const std::uint64_t length =
      format::read_header_length(start.first(std::min(start.size(), format::kStartSize)), nbytes);
  const std::uint64_t data_begin = kLengthSize + length;
  return {Header::parse(start.subspan(kLengthSize, static_cast<std::size_t>(length)),
                        nbytes - data_begin),
          data_begin};
}

ReadHeader read_header(const ByteSource& source, const std::filesystem::path& path) {
  try {
    const std::span<const std::byte> all = source.memory();
    if (!all.empty()) return parse_prologue(all, source.size());
    const Buffer start = read_prologue(source);
    return parse_prologue(start.bytes(), source.size());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo || error.code() == ErrorCode::kOutOfMemory) throw;
    // Upstream's prefixes, for bytes and for files.
    throw error.with_context(
        path.empty() ? "Error while deserializing: " : "Error while deserializing header: ", path);
  }
}

}  // namespace safetensors
