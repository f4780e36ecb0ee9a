// The layers of the library: which files may include which.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support.hpp"

namespace {

namespace fs = std::filesystem;

/// An #include of a <system> header or of a "project" header, without the brackets.
struct Include {
  std::string name;
  bool is_ours;
};

std::vector<Include> includes_of(const fs::path& path) {
  std::vector<Include> includes;
  std::istringstream lines(test::read_text(path));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const std::size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || line.compare(word, 7, "include") != 0) continue;
    const std::size_t open = line.find_first_of("<\"", word);
    const std::size_t close = line.find_first_of(">\"", open + 1);
    if (close == std::string::npos) continue;
    includes.push_back({line.substr(open + 1, close - open - 1), line[open] == '"'});
  }
  return includes;
}

bool is_std(std::string_view name) {
  return name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string_view::npos;
}

bool begins(std::string_view name, std::initializer_list<std::string_view> starts) {
  return std::ranges::any_of(starts,
                             [&](std::string_view start) { return name.starts_with(start); });
}

/// Whether the extension may include it.
bool is_for_bindings(const Include& i) {
  const bool local = i.name.find('/') == std::string::npos;
  return i.is_ours ? local || begins(i.name, {"python/", "safetensors/"})
                   : is_std(i.name) || begins(i.name, {"pybind11/", "Python.h"});
}

bool is_c_std(std::string_view name) {
  return name == "stddef.h" || name == "stdint.h" || name == "stdbool.h";
}

struct Rule {
  std::string folder;
  std::function<bool(const Include&)> allows;
};

// The weight layer is a house of its own. Of the core it includes the public headers, these
// helpers, and what its bindings share with the core's.
const std::vector<std::string> kBaseForWeights = {"base/checked.hpp",
                                                  "base/display_path.hpp",
                                                  "base/json_document.hpp",
                                                  "base/little_endian.hpp",
                                                  "base/made_once.hpp",
                                                  "base/name_hash.hpp",
                                                  "base/name_suggestions.hpp",
                                                  "base/parse_integer.hpp",
                                                  "base/per_process.hpp",
                                                  "base/text.hpp",
                                                  "base/utf8.hpp"};
// Its C functions take arguments and fail as the core's.
const std::vector<std::string> kCForWeights = {"c/guard.hpp", "c/model_source.hpp", "c/options.hpp",
                                               "c/path.hpp"};
const std::vector<std::string> kBindingsForWeights = {"error_classes.hpp", "fast_def.hpp",
                                                      "gil.hpp", "open_hook.hpp", "python.hpp"};

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// A room of weights/src, and the rooms that it may include.
struct Room {
  std::string name;
  std::vector<std::string> others;
};

const std::vector<Room> kRoomsOfWeights = {
    {"common", {}},
    {"names", {}},
    {"config", {"common", "names"}},
    {"dequant", {"common"}},
    {"model", {"common", "dequant", "names"}},
    {"gguf", {"common", "config", "dequant", "model", "names"}},
    {"tensors", {"common", "dequant", "model"}},
    {"schemes", {"common", "config", "dequant", "model", "names", "tensors"}},
    {"hf", {"common", "config", "dequant", "model", "names", "schemes", "tensors"}},
    {"provider", {"common", "gguf", "hf", "model"}},
    {"c", {}}};

bool room_allows(const Room& room, const Include& i) {
  if (!i.is_ours) return is_std(i.name) || (room.name == "dequant" && i.name == "immintrin.h");
  const std::string top = i.name.substr(0, i.name.find('/'));
  if (top == "base") return room.name != "dequant" && has(kBaseForWeights, i.name);
  // What is below the facade does not know it.
  const bool is_above = room.name == "provider" || room.name == "c";
  if (i.name == "safetensors/weights/provider.hpp") return is_above;
  if (i.name == "safetensors/weights.h") return room.name == "c";
  if (top == "c") {
    const fs::path own = fs::path(SAFETENSORS_SOURCE_DIR) / "weights/src" / i.name;
    return room.name == "c" && (has(kCForWeights, i.name) || fs::exists(own));
  }
  return top == "safetensors" || top == room.name || has(room.others, top);
}

/// Headers that are installed, which those in detail/ are not.
bool is_for_headers(const Include& i) {
  if (!i.is_ours) return is_std(i.name) || is_c_std(i.name);
  return begins(i.name, {"safetensors/"}) && !begins(i.name, {"safetensors/detail/"});
}

std::vector<Rule> rules_of_core() {
  return {
      {"include/safetensors/region.hpp",
       [](const Include& i) {
         return i.is_ours ? i.name == "safetensors/slice.hpp" : is_std(i.name);
       }},
      {"include/safetensors/detail/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"safetensors/"}) : is_std(i.name);
       }},
      {"include/", is_for_headers},
      // Its one system call is pthread_atfork: the weight layer needs it too, and cannot reach
      // io's.
      {"src/base/per_process.hpp",
       [](const Include& i) { return !i.is_ours && (is_std(i.name) || i.name == "pthread.h"); }},
      // These alone include libraries of headers, each in names of our own.
      {"src/base/rapidjson.hpp",
       [](const Include& i) { return !i.is_ours && begins(i.name, {"rapidjson/"}); }},
      {"src/base/xxh3.hpp",
       [](const Include& i) { return is_std(i.name) || i.name == "xxhash.h"; }},
      {"src/base/json_special.hpp",
       [](const Include& i) { return is_std(i.name) || i.name == "emmintrin.h"; }},
      {"src/base/",
       [](const Include& i) { return i.is_ours ? begins(i.name, {"base/"}) : is_std(i.name); }},
      {"src/format/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"base/", "format/", "safetensors/"}) : is_std(i.name);
       }},
      {"src/patch/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"base/", "patch/", "safetensors/"})
                          : is_std(i.name) || i.name == "immintrin.h";
       }},
      {"src/io/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"base/parse_integer.hpp", "base/per_process.hpp", "io/",
                                            "safetensors/"})
                          : !begins(i.name, {"rapidjson/", "xxhash", "pybind11/", "Python"});
       }},
      {"src/device/",
       [](const Include& i) {
         return i.is_ours
                    ? begins(i.name, {"base/per_process.hpp", "device/", "io/", "safetensors/"})
                    : !begins(i.name, {"rapidjson/", "xxhash", "pybind11/", "Python"});
       }},
      {"src/c/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"base/", "c/", "safetensors/"})
                          : is_std(i.name) || is_c_std(i.name);
       }},
      // Its one system call is pthread_atfork, too.
      {"src/python/any_thread_gil.cpp",
       [](const Include& i) { return i.is_ours || is_std(i.name) || i.name == "pthread.h"; }},
      // What happens before Python opens a file is no part of the library's interface.
      {"src/python/open_hook.cpp",
       [](const Include& i) {
         return is_for_bindings(i) || i.name == "io/posix/detach_mappings.hpp" ||
                i.name == "fcntl.h";
       }},
      {"src/python/", is_for_bindings},
      {"src/elements/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"base/", "format/", "safetensors/"}) : is_std(i.name);
       }},
      {"src/open/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"base/", "format/", "io/", "open/", "safetensors/"})
                          : is_std(i.name);
       }},
      {"src/check/",
       [](const Include& i) {
         return i.is_ours
                    ? begins(i.name, {"base/", "check/", "format/", "io/", "open/", "safetensors/"})
                    : is_std(i.name) || i.name == "immintrin.h";
       }},
      {"src/write/",
       [](const Include& i) {
         return i.is_ours ? begins(i.name, {"base/", "check/", "format/", "io/", "open/",
                                            "safetensors/", "write/"})
                          : is_std(i.name);
       }},
      {"src/",
       [](const Include& i) {
         return i.is_ours ? !begins(i.name, {"python/", "c/"}) : is_std(i.name);
       }},
  };
}

/// The first rule whose folder a path begins with applies.
const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> rules = rules_of_core();
    rules.push_back({"weights/include/", is_for_headers});
    rules.push_back(
        {"weights/bindings/", [](const Include& i) {
           if (!i.is_ours) return is_for_bindings(i);
           return has(kBindingsForWeights, i.name) || begins(i.name, {"safetensors/"}) ||
                  fs::exists(fs::path(SAFETENSORS_SOURCE_DIR) / "weights/bindings" / i.name);
         }});
    for (const Room& room : kRoomsOfWeights) {
      rules.push_back({"weights/src/" + room.name + "/",
                       [&room](const Include& i) { return room_allows(room, i); }});
    }
    return rules;
  }();
  return all;
}

bool is_source(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".hpp" || extension == ".cpp" || extension == ".h" || extension == ".c";
}

}  // namespace

TEST_CASE("each file includes only what its layer allows") {
  const fs::path root = SAFETENSORS_SOURCE_DIR;
  std::size_t count = 0;
  for (const char* folder :
       {"include", "src", "weights/include", "weights/src", "weights/bindings"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!is_source(entry.path())) continue;
      const std::string path = entry.path().lexically_relative(root).generic_string();
      const auto rule = std::ranges::find_if(
          rules(), [&](const Rule& each) { return path.starts_with(each.folder); });
      CAPTURE(path);
      REQUIRE(rule != rules().end());
      for (const Include& include : includes_of(entry.path())) {
        ++count;
        CAPTURE(include.name);
        CHECK(rule->allows(include));
      }
    }
  }
  CHECK(count > 100);
}

TEST_CASE("the core knows nothing of the weight layer") {
  const fs::path root = SAFETENSORS_SOURCE_DIR;
  std::size_t sources = 0;
  std::size_t lists = 0;
  for (const char* folder : {"include", "src", "tests/cpp", "tests/device", "tests/faults",
                             "tests/fuzz", "benchmarks/cpp", "cmake"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string path = entry.path().lexically_relative(root).generic_string();
      CAPTURE(path);
      if (is_source(entry.path())) {
        ++sources;
        for (const Include& include : includes_of(entry.path())) {
          CAPTURE(include.name);
          CHECK_FALSE(begins(include.name, {"safetensors/weights/", "safetensors/weights.h"}));
          CHECK_FALSE(fs::exists(root / "weights/src" / include.name));
          CHECK_FALSE(fs::exists(root / "weights/bindings" / include.name));
        }
      } else if (path.ends_with("CMakeLists.txt") || path.ends_with(".cmake")) {
        ++lists;
        CHECK(test::read_text(entry.path()).find("weights") == std::string::npos);
      }
    }
  }
  CHECK(sources > 300);
  CHECK(lists > 8);
}

TEST_CASE("the weight layer needs all that the rules let it include") {
  const fs::path root = SAFETENSORS_SOURCE_DIR;
  std::set<std::string> needed;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / "weights")) {
    const std::string path = entry.path().lexically_relative(root / "weights").generic_string();
    if (!is_source(entry.path()) || !begins(path, {"src/", "bindings/"})) continue;
    for (const Include& include : includes_of(entry.path())) {
      needed.insert(include.name);
      const std::string top = include.name.substr(0, include.name.find('/'));
      if (path.starts_with("src/"))
        needed.insert(path.substr(4, path.find('/', 4) - 4) + ">" + top);
    }
  }
  std::vector<std::string> allowed = kBaseForWeights;
  allowed.insert(allowed.end(), kBindingsForWeights.begin(), kBindingsForWeights.end());
  allowed.insert(allowed.end(), kCForWeights.begin(), kCForWeights.end());
  for (const Room& room : kRoomsOfWeights) {
    for (const std::string& other : room.others) allowed.push_back(room.name + ">" + other);
  }
  for (const std::string& name : allowed) {
    CAPTURE(name);
    CHECK(needed.contains(name));
  }
}

TEST_CASE("each source file is in a CMake list") {
  const fs::path root = SAFETENSORS_SOURCE_DIR;
  const auto lists = [&](const fs::path& list, const std::string& name) {
    const std::string text = test::read_text(root / list / "CMakeLists.txt");
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
      const char before = text[at - 1];  // a CMake list never begins with a file
      const char after = text[at + name.size()];
      const bool is_whole = before == ' ' || before == '(';
      if (is_whole && (after == ' ' || after == '\n' || after == ')')) return true;
    }
    return false;
  };
  const auto check = [&](const fs::path& list, const std::string& folder) {
    for (const auto& entry : fs::recursive_directory_iterator(root / list / folder)) {
      if (entry.path().extension() != ".cpp") continue;
      const std::string name = entry.path().lexically_relative(root / list).generic_string();
      CAPTURE(name);
      CHECK(lists(list, name));
    }
  };
  for (const char* const folder : {"src/c", "src/check", "src/device", "src/elements", "src/format",
                                   "src/io", "src/open", "src/patch", "src/write"}) {
    check("", folder);
  }
  check("src/python", "");
  check("weights", "src");
  check("weights/bindings", "");
  check("tests/faults", "");
  // Others are in lists of other folders, or compiled by tests.
  for (const char* const folder : {"tests/cpp", "weights/tests/cpp"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string name = entry.path().lexically_relative(root / folder).generic_string();
      CAPTURE(name);
      if (entry.path().filename().string().starts_with("test_")) CHECK(lists(folder, name));
    }
  }
}

TEST_CASE("the check finds forbidden includes") {
  const auto allows = [](std::string_view folder, std::string_view name, bool is_ours) {
    const auto rule = std::ranges::find(rules(), folder, &Rule::folder);
    return rule->allows({std::string(name), is_ours});
  };
  CHECK(allows("include/", "vector", false));
  CHECK_FALSE(allows("include/", "unistd.h", false));
  CHECK_FALSE(allows("include/", "base/text.hpp", true));
  CHECK_FALSE(allows("src/format/", "sys/mman.h", false));
  CHECK_FALSE(allows("src/format/", "unistd.h", false));
  CHECK_FALSE(allows("src/format/", "io/fd.hpp", true));
  CHECK_FALSE(allows("src/base/", "pthread.h", false));
  CHECK_FALSE(allows("src/io/", "base/text.hpp", true));
  CHECK_FALSE(allows("src/python/", "base/text.hpp", true));
  CHECK_FALSE(allows("weights/src/gguf/", "hf/config.hpp", true));
  CHECK_FALSE(allows("weights/src/gguf/", "io/parallel.hpp", true));
  CHECK_FALSE(allows("weights/src/gguf/", "base/per_thread.hpp", true));
  CHECK_FALSE(allows("weights/src/dequant/", "base/text.hpp", true));
  CHECK(allows("weights/src/c/", "c/guard.hpp", true));
  CHECK_FALSE(allows("weights/src/c/", "c/file.hpp", true));
  CHECK_FALSE(allows("weights/src/gguf/", "c/guard.hpp", true));
  CHECK_FALSE(allows("weights/src/hf/", "safetensors/weights/provider.hpp", true));
  CHECK_FALSE(allows("weights/bindings/", "tensor_spec.hpp", true));
  CHECK(allows("src/base/rapidjson.hpp", "rapidjson/reader.h", false));
  for (const Rule& rule : rules()) {
    CAPTURE(rule.folder);
    CHECK(rule.allows({"rapidjson/reader.h", false}) == (rule.folder == "src/base/rapidjson.hpp"));
    CHECK(rule.allows({"xxhash.h", false}) == (rule.folder == "src/base/xxh3.hpp"));
  }
  const test::TempDir folder;
  test::write_text(folder / "f", "#include <a>\n  #  include \"b/c.hpp\"  // x\n// #include <d>\n");
  const std::vector<Include> found = includes_of(folder / "f");
  REQUIRE(found.size() == 2);
  CHECK(found[1].name == "b/c.hpp");
  CHECK(found[1].is_ours);
}
