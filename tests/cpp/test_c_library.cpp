// C: what the shared library of the C interface exports, and that it can be unloaded.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "safetensors/version.h"
#include "support.hpp"

namespace {

namespace fs = std::filesystem;

/// Returns what a command prints.
std::string output_of(const std::string& command) {
  struct Close {
    void operator()(std::FILE* file) const noexcept { ::pclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> output(::popen(command.c_str(), "r"));
  REQUIRE(output != nullptr);
  std::string text;
  char block[4096];
  for (std::size_t size = 0; (size = std::fread(block, 1, sizeof block, output.get())) != 0;) {
    text.append(block, size);
  }
  return text;
}

/// Returns the symbols that the library exports, each with its version.
std::map<std::string, std::string> exported() {
  std::map<std::string, std::string> symbols;
  std::istringstream lines(
      output_of(SAFETENSORS_NM " -D --defined-only --with-symbol-versions " SAFETENSORS_C_LIBRARY));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string address, type, name;
    words >> address >> type >> name;
    if (type == "A") continue;  // a version itself
    const std::size_t at = name.find('@');
    symbols.emplace(name.substr(0, at), at == std::string::npos ? "" : name.substr(at));
  }
  return symbols;
}

/// Returns the functions that a header declares.
std::set<std::string> declared(const std::string& header) {
  const std::string text = test::read_text(fs::path(SAFETENSORS_SOURCE_DIR) / header);
  constexpr std::string_view kMark = "SAFETENSORS_API ";
  std::set<std::string> names;
  for (std::size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
    const std::size_t end = text.find('(', at);
    const std::size_t begin = text.find_last_of(" *\n", end) + 1;
    names.insert(text.substr(begin, end - begin));
  }
  return names;
}

}  // namespace

TEST_CASE("C: the library exports the functions of its headers, each with a version, and no more") {
  std::set<std::string> wanted;
  std::istringstream headers(SAFETENSORS_C_HEADERS);
  std::set<std::string> versions;
  const auto symbols = exported();
  for (std::string header; headers >> header;) {
    const std::set<std::string> functions = declared(header);
    CHECK(functions.size() > 20);
    std::set<std::string> of_header;
    for (const std::string& name : functions) {
      CAPTURE(name);
      REQUIRE(symbols.contains(name));
      of_header.insert(symbols.at(name));
    }
    // A header's functions have versions of their own, which a library without them lacks.
    for (const std::string& version : of_header) {
      CHECK(version.starts_with("@@SAFETENSORS_"));
      CHECK(versions.insert(version).second);
    }
    wanted.insert(functions.begin(), functions.end());
  }
  for (const auto& [name, version] : symbols) {
    CAPTURE(name);
    CHECK(wanted.contains(name));
  }
}

TEST_CASE("C: the library works, says its ABI, and can be unloaded") {
  for (int i = 0; i < 3; ++i) {
    void* const library = ::dlopen(SAFETENSORS_C_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library != nullptr, ::dlerror());
    const auto function = [&](const char* name) {
      void* const found = ::dlsym(library, name);
      REQUIRE(found != nullptr);
      return found;
    };
    const auto version = reinterpret_cast<std::uint32_t (*)()>(function("safetensors_abi_version"));
    CHECK(version() == SAFETENSORS_ABI_VERSION);
    // It reads a file, with an error that is thrown and caught within.
    const auto open =
        reinterpret_cast<std::int32_t (*)(const char*, std::size_t, const void*, void**, void*)>(
            function("safetensors_open"));
    void* file = nullptr;
    CHECK(open("/nowhere/at/all", 15, nullptr, &file, nullptr) == 19);
    CHECK(::dlclose(library) == 0);
    CHECK(::dlopen(SAFETENSORS_C_LIBRARY, RTLD_NOW | RTLD_NOLOAD) == nullptr);
  }
}
