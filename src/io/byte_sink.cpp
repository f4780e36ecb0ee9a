#include "safetensors/byte_sink.hpp"

#include "safetensors/detail/folder.hpp"

namespace safetensors {

ByteSink::~ByteSink() = default;

std::filesystem::path ByteSink::label() const { return {}; }

void ByteSink::start(std::uint64_t) {}

std::uint64_t ByteSink::copy_from(const ByteSource&, std::uint64_t, std::uint64_t, std::uint64_t) {
  return 0;
}

bool ByteSink::shift(std::uint64_t, std::uint64_t) { return false; }

void detail::write_whole(ByteSink& sink, std::span<const std::byte> bytes) {
  sink.start(bytes.size());
  for (std::uint64_t at = 0; at < bytes.size();) {
    at += sink.write_at(at, bytes.subspan(static_cast<std::size_t>(at)));
  }
}

void detail::write_all(ByteSink& sink, std::span<const std::byte> bytes, bool fsync) {
  write_whole(sink, bytes);
  sink.commit(bytes.size(), fsync);
}

}  // namespace safetensors
