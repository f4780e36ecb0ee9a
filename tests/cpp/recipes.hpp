// Reads tests/data/hostile.json, whose first lines say what a recipe is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace test {

class Node;  // a value of the table's JSON

struct Recipe {
  std::string name;
  std::string expect;  ///< name of an ErrorCode, or "ok"
  bool heavy = false;  ///< tens of megabytes
  std::shared_ptr<const Node> row;
  std::uint64_t i = 0;  ///< what the row's "i" stands for

  /// The bytes of the file. For a heavy row, `shrink` divides how often its parts are repeated:
  /// the outcome is the same.
  [[nodiscard]] std::string file(std::uint64_t shrink = 1) const;
};

/// All of the table. A row with `from` and `to` gives a recipe for each number between them.
std::vector<Recipe> read_recipes(const std::filesystem::path& table);

}  // namespace test
