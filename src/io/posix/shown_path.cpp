#include "io/os_error.hpp"

namespace safetensors::io {

std::string shown_path(const std::filesystem::path& path) { return path.native(); }

}  // namespace safetensors::io
