#include "io/new_memory.hpp"

namespace safetensors::io {

// Windows has no such call, and large pages require a privilege that programs usually lack.
void provide_pages(std::span<std::byte> /*memory*/) noexcept {}

}  // namespace safetensors::io
