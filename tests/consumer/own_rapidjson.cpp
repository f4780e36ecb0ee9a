// A program with RapidJSON of its own, whose errors are exceptions, as RapidJSON's documents
// suggest: the library's parser must not become the program's, nor the program's the library's.
#include <rapidjson/error/error.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

class ParseException : public std::runtime_error, public rapidjson::ParseResult {
 public:
  ParseException(rapidjson::ParseErrorCode code, const char* message, std::size_t offset)
      : std::runtime_error(message), ParseResult(code, offset) {}
};
#define RAPIDJSON_PARSE_ERROR_NORETURN(code, offset) throw ParseException(code, #code, offset)
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <safetensors/safetensors.hpp>
#include <safetensors/shard_index.hpp>
#include <safetensors/sums.hpp>
#if defined(CONSUMER_WEIGHTS)
#include <safetensors/weights/weights.hpp>
#endif

namespace {

int failures = 0;

struct Handler : rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Handler> {
  bool Default() { return true; }
};

/// Parses with the program's own reader, with each of the flags that the library uses.
template <unsigned kFlags>
void parse_own(std::string_view json) {
  rapidjson::MemoryStream stream(json.data(), json.size());
  rapidjson::Reader reader;
  Handler handler;
  try {
    reader.Parse<kFlags>(stream, handler);
  } catch (const ParseException&) {
    return;
  }
  std::printf("own reader: no exception for %s\n", json.data());
  ++failures;
}

/// The library must throw its own exception.
template <typename Work>
void check(const char* what, const char* json, const Work& work) {
  try {
    work();
    std::printf("%s: no error for %s\n", what, json);
  } catch (const safetensors::Error&) {
    return;
  } catch (const ParseException& error) {
    std::printf("%s: the program's exception for %s: %s\n", what, json, error.what());
  }
  ++failures;
}

constexpr std::array kDamaged = {
    "{\"\\x\":1}",
    "{\"\\uZZZZ\":1}",
    "{\"a",
    "{\"\\ud800\":1}",
    "{\"a\":{\"dtype\":\"\\q\"}}",
    "{\"__metadata__\":{\"a\":\"\\uQ\"}}",
    "[1,",
    "nul",
    "{\"a\" 1}",
};

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path folder = std::string(argc > 1 ? argv[1] : "own_rapidjson") + ".model";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "model.safetensors", std::ios::binary).write("\2\0\0\0\0\0\0\0{}", 10);
  for (const char* const json : kDamaged) {
    parse_own<rapidjson::kParseDefaultFlags>(json);
    parse_own<rapidjson::kParseNumbersAsStringsFlag>(json);
    parse_own<rapidjson::kParseIterativeFlag | rapidjson::kParseNanAndInfFlag |
              rapidjson::kParseValidateEncodingFlag | rapidjson::kParseNumbersAsStringsFlag>(json);
    check("Header", json, [&] {
      (void)safetensors::Header::parse(std::as_bytes(std::span(json, std::strlen(json))), 0);
    });
    check("ShardIndex", json, [&] { (void)safetensors::ShardIndex::parse(json); });
    check("Sums", json, [&] { (void)safetensors::Sums::parse(json); });
#if defined(CONSUMER_WEIGHTS)
    std::ofstream(folder / "config.json") << json;
    check("WeightProvider", json,
          [&] { (void)safetensors::weights::WeightProvider::open(folder); });
#endif
  }
  if (failures == 0) std::puts("consumer: own RapidJSON works");
  return failures == 0 ? 0 : 1;
}
