// What the static libraries define. Two functions of a program with the same name are one: the
// linker keeps either.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "support.hpp"

namespace {

struct Symbol {
  std::string object;  // the member of the library that defines it
  char type = 0;       // nm's letter
  std::string name;    // demangled
};

/// Returns the symbols that the objects of the libraries define for each other, and for programs.
std::vector<Symbol> defined_symbols() {
  struct Close {
    void operator()(std::FILE* file) const noexcept { ::pclose(file); }
  };
  const std::string command =
      SAFETENSORS_NM " -C --defined-only --extern-only " SAFETENSORS_LIBRARIES " 2>&1";
  const std::unique_ptr<std::FILE, Close> output(::popen(command.c_str(), "r"));
  REQUIRE(output != nullptr);
  std::string text;
  char block[4096];
  for (std::size_t size = 0; (size = std::fread(block, 1, sizeof block, output.get())) != 0;) {
    text.append(block, size);
  }
  std::vector<Symbol> symbols;
  std::string object;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with(".o:")) object = line;
    // An address of 16 digits, a space, the type, a space, the name.
    if (line.size() > 19 && line[16] == ' ' && line[18] == ' ') {
      symbols.push_back({object, line[17], line.substr(19)});
    }
  }
  return symbols;
}

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Whether the name belongs to us: a program has it only if it takes our namespaces or prefix.
bool is_ours(std::string_view name) {
  return holds(name, "safetensors::") || holds(name, "safetensors_rapidjson::") ||
         holds(name, "N11safetensors") ||  // nm cannot demangle all names
         name.starts_with("safetensors_");
}

/// Whether it comes from the C++ standard library or the compiler alone, and is thus the same in
/// all of a program.
bool is_standard(std::string_view name) {
  constexpr std::string_view kStarts[] = {"std::", "__gnu_cxx::", "operator ",
                                          "__clang_call_terminate", "DW.ref."};
  constexpr std::string_view kForeign[] = {"rapidjson", "XXH", "doctest", "pybind11"};
  // "guard variable for std::...", "void std::...", "std::pair<...> std::..."
  return (std::ranges::any_of(kStarts,
                              [&](std::string_view each) { return name.starts_with(each); }) ||
          holds(name, " std::") || holds(name, " __gnu_cxx::")) &&
         std::ranges::none_of(kForeign, [&](std::string_view each) { return holds(name, each); });
}

}  // namespace

TEST_CASE("the libraries define no symbol that a program could define differently") {
  const std::vector<Symbol> symbols = defined_symbols();
  CHECK(symbols.size() > 300);
  CHECK(std::ranges::any_of(symbols, [](const Symbol& symbol) {
    return holds(symbol.name, "safetensors_rapidjson::GenericReader");
  }));
  for (const Symbol& symbol : symbols) {
    const bool is_safe = is_ours(symbol.name) || is_standard(symbol.name);
    if (is_safe && !holds(" " + symbol.name, " rapidjson::")) continue;
    CAPTURE(symbol.object);
    CAPTURE(symbol.name);
    CHECK(is_safe);
    CHECK_FALSE(holds(" " + symbol.name, " rapidjson::"));
  }
}

TEST_CASE("objects for AVX2 define nothing that the linker could take for others") {
  // A function of the standard library in them would have instructions that not all processors
  // have.
  for (const Symbol& symbol : defined_symbols()) {
    if (!holds(symbol.object, "avx2") || symbol.type == 'T') continue;
    if (symbol.name.starts_with("DW.ref.")) continue;  // data
    CAPTURE(symbol.object);
    CAPTURE(symbol.name);
    CHECK(is_ours(symbol.name));
  }
}

TEST_CASE("the check finds symbols of others") {
  CHECK(is_ours("safetensors_open"));
  CHECK(is_ours(
      "safetensors_rapidjson::internal::Stack<safetensors_rapidjson::CrtAllocator>::Destroy()"));
  CHECK_FALSE(is_ours("rapidjson::SkipWhitespace(rapidjson::MemoryStream&)"));
  CHECK_FALSE(is_standard("void std::swap<rapidjson::CrtAllocator>(rapidjson::CrtAllocator&)"));
  CHECK_FALSE(is_standard("XXH3_128bits_update"));
  CHECK(is_standard("std::vector<char, std::allocator<char> >::~vector()"));
}
