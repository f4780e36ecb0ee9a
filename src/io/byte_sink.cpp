#include "safetensors/byte_sink.hpp"

namespace safetensors {

ByteSink::~ByteSink() = default;

void ByteSink::start(std::uint64_t) {}

std::uint64_t ByteSink::copy_from(const ByteSource&, std::uint64_t, std::uint64_t, std::uint64_t) {
  return 0;
}

bool ByteSink::shift(std::uint64_t, std::uint64_t) { return false; }

}  // namespace safetensors
