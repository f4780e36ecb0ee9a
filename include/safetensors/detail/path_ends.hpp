// Finding what a table with relative paths says about a file. For this project's own bindings: it
// may change at any time.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "safetensors/export.hpp"

namespace safetensors::detail {

/// Relative paths, found by the paths that end with them in whole parts. Parts end at "/", and on
/// Windows at "\" as well.
///
/// Thread safety: immutable; find() may be called from many threads at once.
class PathEnds {
 public:
  SAFETENSORS_API explicit PathEnds(const std::vector<std::filesystem::path>& ends);

  /// Returns the number of the one with the most parts that `path` ends with. Of equal ones, it is
  /// the first. Takes time for the lengths in parts that occur, and not for each entry.
  [[nodiscard]] SAFETENSORS_API std::optional<std::size_t> find(
      const std::filesystem::path& path) const;

 private:
  /// How many parts the ends with the same last part have, the most first.
  std::map<std::string, std::vector<std::size_t>, std::less<>> counts_;
  std::map<std::string, std::size_t, std::less<>> numbers_;
};

}  // namespace safetensors::detail
