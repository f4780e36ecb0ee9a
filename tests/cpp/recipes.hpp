// Reads tests/data/hostile.json, whose first lines say what a recipe is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace test {

struct Recipe {
  std::string name;
  std::string expect;  ///< name of an ErrorCode, or "ok"
  bool heavy = false;  ///< tens of megabytes
  std::string json;    ///< the row itself

  /// The bytes of the file. For a heavy row, `shrink` divides how often its parts are repeated:
  /// the outcome is the same.
  [[nodiscard]] std::string file(std::uint64_t shrink = 1) const;
};

std::vector<Recipe> read_recipes(const std::filesystem::path& table);

}  // namespace test
