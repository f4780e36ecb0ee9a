#include "io/temporary_name.hpp"

#include <array>
#include <cstdio>
#include <random>

namespace safetensors::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxNameUnits = 200;  // of the usual 255, to leave room for the rest

}  // namespace

fs::path folder_of(const fs::path& target) {
  return target.has_parent_path() ? target.parent_path() : fs::path(".");
}

fs::path temporary_name(const fs::path& target) {
  std::random_device device;
  std::array<char, 17> digits{};
  (void)std::snprintf(digits.data(), digits.size(), "%08x%08x", device(), device());
  fs::path name = ".";
  name += target.filename().native().substr(0, kMaxNameUnits);
  name += ".";
  name += digits.data();
  name += ".tmp";
  return folder_of(target) / name;
}

}  // namespace safetensors::io
