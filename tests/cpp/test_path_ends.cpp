#include <doctest/doctest.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "safetensors/detail/path_ends.hpp"

using safetensors::detail::PathEnds;

namespace {

/// Returns the one that find() should return, by looking at all of them.
std::optional<std::size_t> find_slowly(const std::vector<std::filesystem::path>& ends,
                                       const std::filesystem::path& path) {
  std::optional<std::size_t> found;
  std::ptrdiff_t most = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::string end = "/" + ends[i].string();
    const auto parts = std::distance(ends[i].begin(), ends[i].end());
    if (("/" + path.string()).ends_with(end) && parts > most) {
      found = i;
      most = parts;
    }
  }
  return found;
}

}  // namespace

TEST_CASE("a path is found by its end, in whole parts") {
  const PathEnds ends({"a.st", "x/a.st", "y/x/b.st", "a.st", "long/b.st"});
  CHECK(ends.find("a.st") == 0);
  CHECK(ends.find("/m/a.st") == 0);
  CHECK(ends.find("/m/x/a.st") == 1);
  CHECK(ends.find("/m/xx/a.st") == 0);
  CHECK(ends.find("aa.st") == std::nullopt);
  CHECK(ends.find("x/b.st") == std::nullopt);
  CHECK(ends.find("/y/x/b.st") == 2);
  CHECK(ends.find("y/x/b.st") == 2);
  CHECK(ends.find("b.st") == std::nullopt);
  CHECK(ends.find("") == std::nullopt);
  const PathEnds absolute({"/a.st"});
  CHECK(absolute.find("/a.st") == 0);
  CHECK(absolute.find("x/a.st") == std::nullopt);
  CHECK(PathEnds({}).find("a.st") == std::nullopt);
  CHECK(PathEnds({""}).find("a.st") == std::nullopt);
}

TEST_CASE("all short paths are found as by looking at each end") {
  std::vector<std::filesystem::path> paths;
  for (const char* const first : {"a", "b", "ab"}) {
    paths.emplace_back(first);
    for (const char* const second : {"a", "b"}) {
      paths.push_back(std::filesystem::path(first) / second);
      for (const char* const third : {"a", "ab"}) {
        paths.push_back(std::filesystem::path(first) / second / third);
      }
    }
  }
  std::vector<std::filesystem::path> some;
  for (std::size_t i = 0; i < paths.size(); i += 2) some.push_back(paths[i]);
  const PathEnds ends(some);
  for (const std::filesystem::path& path : paths) {
    CAPTURE(path.string());
    CHECK(ends.find(path) == find_slowly(some, path));
    CHECK(ends.find("/b" / path) == find_slowly(some, "/b" / path));
  }
}
