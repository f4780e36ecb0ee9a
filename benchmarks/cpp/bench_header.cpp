// Times Header::parse, which validates and indexes, against RapidJSON's bare reader, which only
// parses, and against reading the bytes. Prints one line of JSON.
#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/safetensors.hpp"
#include "timing.hpp"

namespace {

constexpr const char* kUsage =
    "usage: bench_header FILE ITERATIONS    the header of a file\n"
    "       bench_header MEGABYTES ITERATIONS    a header of that size, made up\n";
constexpr std::size_t kTensorNbytes = 1024;

struct Subject {
  std::string json;
  std::uint64_t data_nbytes = 0;
};

/// A header of about that many megabytes: names and shapes as in a mixture of experts.
Subject make_header(std::size_t megabytes) {
  Subject made;
  made.json = "{";
  const std::size_t wanted = megabytes * 1'000'000;
  made.json.reserve(wanted + 200);
  for (std::size_t i = 0; made.json.size() < wanted; ++i) {
    if (i != 0) made.json += ',';
    const std::uint64_t begin = made.data_nbytes;
    made.data_nbytes += kTensorNbytes;
    made.json += "\"model.layers." + std::to_string(i / 1000) + ".mlp.experts." +
                 std::to_string(i % 1000) +
                 R"(.gate_proj.weight":{"dtype":"F32","shape":[16,16],"data_offsets":[)" +
                 std::to_string(begin) + "," + std::to_string(made.data_nbytes) + "]}";
  }
  made.json += '}';
  return made;
}

Subject read_header(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error(path + " cannot be read");
  const auto size = static_cast<std::uint64_t>(file.tellg());
  file.seekg(0);
  std::uint64_t length = 0;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(file.get())) << shift;
  }
  if (!file || size < safetensors::kLengthSize || length > size - safetensors::kLengthSize) {
    throw std::runtime_error(path + " is not a safetensors file");
  }
  Subject found;
  found.json.resize(length);
  file.read(found.json.data(), static_cast<std::streamsize>(length));
  found.data_nbytes = size - safetensors::kLengthSize - length;
  return found;
}

/// Parses and throws everything away.
template <unsigned flags>
bool parse_bare(std::string_view json) {
  rapidjson::MemoryStream stream(json.data(), json.size());
  rapidjson::BaseReaderHandler<> handler;
  rapidjson::Reader reader;
  if (!reader.Parse<flags>(stream, handler)) throw std::runtime_error("not JSON");
  return true;
}

void time_parsers(const Subject& subject, std::size_t iterations) {
  const std::string_view json = subject.json;
  bench::Times touch;
  bench::Times bare;
  bench::Times validating;
  bench::Times ours;
  std::size_t count = 0;
  volatile std::uint64_t sink = 0;
  for (std::size_t i = 0; i < iterations; ++i) {
    touch.run([&] {
      sink = std::transform_reduce(json.begin(), json.end(), std::uint64_t{0}, std::plus<>(),
                                   [](char c) { return static_cast<unsigned char>(c); });
      return true;
    });
    bare.run([&] { return parse_bare<rapidjson::kParseDefaultFlags>(json); });
    validating.run([&] { return parse_bare<rapidjson::kParseValidateEncodingFlag>(json); });
    ours.run([&] {
      auto header = safetensors::Header::parse(std::as_bytes(std::span(json)), subject.data_nbytes);
      count = header.size();
      return header;
    });
  }
  std::printf(
      "{\"program\": \"bench_header\", \"build\": \"%s\", \"header_nbytes\": %zu, "
      "\"tensors\": %zu, \"iterations\": %zu, \"touch\": %.9f, \"rapidjson\": %.9f, "
      "\"rapidjson_validating\": %.9f, \"parse\": %.9f, \"ratio\": %.3f}\n",
      SAFETENSORS_BUILD_TYPE, json.size(), count, iterations, touch.min(), bare.min(),
      validating.min(), ours.min(), ours.min() / validating.min());
}

void run(const std::vector<std::string>& args) {
  const auto iterations = args.size() == 2 ? bench::count_from(args[1]) : std::nullopt;
  if (!iterations) throw bench::BadArguments();
  const auto megabytes = bench::count_from(args[0]);
  time_parsers(megabytes ? make_header(*megabytes) : read_header(args[0]), *iterations);
}

}  // namespace

int main(int argc, char** argv) { return bench::run_program(argc, argv, kUsage, run); }
