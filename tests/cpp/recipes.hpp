// Reads tests/data/hostile.json, whose first lines say what a recipe is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace test {

struct Recipe {
  std::string name;
  std::string expect;  ///< name of an ErrorCode, or "ok"
  bool heavy = false;  ///< tens of megabytes
  std::string json;    ///< the row itself

  /// The bytes of the file.
  [[nodiscard]] std::string file() const;
};

std::vector<Recipe> read_recipes(const std::filesystem::path& table);

}  // namespace test
