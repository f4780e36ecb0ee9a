// Reads conformance/cases.json, a table of good and hostile files. Its first lines explain it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace test {

class Node;  // a value of the table's JSON

/// A file that a reader must refuse, or just accept, and the outcome.
struct HostileCase {
  std::string name;
  std::string expect;  ///< name of an ErrorCode, or "ok"
  bool heavy = false;  ///< tens of megabytes
  std::shared_ptr<const Node> row;
  std::uint64_t i = 0;  ///< the value of the row's "i"

  /// Returns the bytes of the file. For a heavy row, `shrink` divides how often its parts are
  /// repeated: the outcome is the same.
  [[nodiscard]] std::string file(std::uint64_t shrink = 1) const;
};

/// Returns all cases of the table. A row with `from` and `to` is a case for each number between
/// them.
std::vector<HostileCase> read_hostile_cases(const std::filesystem::path& table);

}  // namespace test
