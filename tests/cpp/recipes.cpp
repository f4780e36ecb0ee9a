#include "recipes.hpp"

#include <rapidjson/document.h>
#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "support.hpp"

namespace test {
namespace {

using Value = rapidjson::Value;

std::string_view text_of(const Value& value) {
  return {value.GetString(), value.GetStringLength()};
}

/// Small numbers stay: they are no matter of size.
std::uint64_t shrunk(const Value& number, std::uint64_t shrink) {
  const std::uint64_t value = number.GetUint64();
  return value < 10'000 ? value : value / shrink;
}

void append_hex(std::string& out, std::string_view digits) {
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  }
}

void append_each(std::string& out, std::string text, std::uint64_t count, bool reverse) {
  std::replace(text.begin(), text.end(), '\'', '"');
  for (std::uint64_t at = 0; at < count; ++at) {
    const std::uint64_t i = reverse ? count - 1 - at : at;
    if (at != 0) out += ',';
    std::size_t plain = 0;  // start of the stretch that is taken as it is
    for (std::size_t brace = text.find('{'); brace != std::string::npos;
         brace = text.find('{', brace + 1)) {
      const std::string_view found = std::string_view(text).substr(brace, 3);
      if (found != "{i}" && found != "{n}") continue;
      out.append(text, plain, brace - plain);
      out += std::to_string(found == "{i}" ? i : i + 1);
      plain = brace + 3;
    }
    out.append(text, plain);
  }
}

void append_part(std::string& out, const Value& part, std::uint64_t shrink) {
  if (part.IsString()) {
    for (const char c : text_of(part)) out += c == '\'' ? '"' : c;
  } else if (part.IsArray()) {
    for (const Value& inner : part.GetArray()) append_part(out, inner, shrink);
  } else if (part.HasMember("hex")) {
    append_hex(out, text_of(part["hex"]));
  } else if (part.HasMember("repeat")) {
    std::string once;
    append_part(once, part["repeat"], shrink);
    const std::uint64_t count = shrunk(part["count"], shrink);
    if (once.size() == 1) {  // by far the most
      out.append(count, once[0]);
      return;
    }
    out.reserve(out.size() + once.size() * count);
    for (std::uint64_t i = 0; i < count; ++i) out += once;
  } else if (part.HasMember("each")) {
    append_each(out, std::string(text_of(part["each"])), shrunk(part["count"], shrink),
                part.HasMember("reverse"));
  } else {
    throw std::runtime_error("unknown part in a recipe");
  }
}

}  // namespace

std::string Recipe::file(std::uint64_t shrink) const {
  rapidjson::Document row;
  row.Parse(json.data(), json.size());
  std::string out;
  if (row.HasMember("file")) {
    append_part(out, row["file"], shrink);
    return out;
  }
  out.assign(8, '\0');
  append_part(out, row["header"], shrink);
  const std::uint64_t length =
      row.HasMember("length") ? row["length"].GetUint64() : std::uint64_t{out.size() - 8};
  out.replace(0, 8, length_bytes(length));
  if (row.HasMember("data")) out.append(shrunk(row["data"], shrink), '\0');
  if (row.HasMember("cut")) out.resize(out.size() - row["cut"].GetUint64());
  return out;
}

std::vector<Recipe> read_recipes(const std::filesystem::path& table) {
  const std::string text = read_text(table);
  rapidjson::Document document;
  document.Parse(text.data(), text.size());
  if (document.HasParseError()) throw std::runtime_error("the table of recipes is not JSON");
  std::vector<Recipe> recipes;
  for (const Value& row : document["rows"].GetArray()) {
    rapidjson::StringBuffer json;
    rapidjson::Writer<rapidjson::StringBuffer> writer(json);
    row.Accept(writer);
    recipes.push_back({std::string(text_of(row["name"])), std::string(text_of(row["expect"])),
                       row.HasMember("heavy"), std::string(json.GetString(), json.GetSize())});
  }
  return recipes;
}

}  // namespace test
