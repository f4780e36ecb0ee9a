#include "hostile_cases.hpp"

#include <rapidjson/memorystream.h>
#include <rapidjson/reader.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "support.hpp"

namespace test {

// Not RapidJSON's document: its header does not compile with clang 19.
class Node {
 public:
  enum class Kind : std::uint8_t { kText, kNumber, kTrue, kList, kObject };

  Kind kind = Kind::kTrue;
  std::string text;
  std::uint64_t number = 0;
  std::vector<Node> items;        // of a list or an object
  std::vector<std::string> keys;  // of an object

  [[nodiscard]] const Node* find(std::string_view key) const {
    const auto at = std::find(keys.begin(), keys.end(), key);
    return at == keys.end() ? nullptr : &items[static_cast<std::size_t>(at - keys.begin())];
  }
  [[nodiscard]] const Node& at(std::string_view key) const {
    if (const Node* const found = find(key)) return *found;
    throw std::runtime_error("a hostile case has no " + std::string(key));
  }
};

namespace {

/// Makes a Node of RapidJSON's events.
class TreeMaker : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, TreeMaker> {
 public:
  [[nodiscard]] Node take() { return std::move(root_); }

  bool Default() { return false; }  // the table has no other values
  bool Bool(bool) { return add({}); }
  bool Uint(unsigned value) { return Uint64(value); }
  bool Uint64(std::uint64_t value) {
    Node node;
    node.kind = Node::Kind::kNumber;
    node.number = value;
    return add(std::move(node));
  }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    Node node;
    node.kind = Node::Kind::kText;
    node.text.assign(text, size);
    return add(std::move(node));
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    open_.back().keys.emplace_back(text, size);
    return true;
  }
  bool StartObject() { return open(Node::Kind::kObject); }
  bool EndObject(rapidjson::SizeType) { return close(); }
  bool StartArray() { return open(Node::Kind::kList); }
  bool EndArray(rapidjson::SizeType) { return close(); }

 private:
  bool open(Node::Kind kind) {
    open_.emplace_back();
    open_.back().kind = kind;
    return true;
  }
  bool close() {
    Node node = std::move(open_.back());
    open_.pop_back();
    return add(std::move(node));
  }
  bool add(Node node) {
    (open_.empty() ? root_ : open_.back().items.emplace_back()) = std::move(node);
    return true;
  }

  Node root_;
  std::vector<Node> open_;
};

/// The values of numbers in a row: `i` for "i"; large ones are divided by `shrink`.
struct Numbers {
  std::uint64_t i;       // for "i"
  std::uint64_t shrink;  // divides the large ones

  [[nodiscard]] std::uint64_t of(const Node& node) const {
    if (node.text == "i") return i;
    return node.number < 10'000 ? node.number : node.number / shrink;
  }
};

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

void append_part(std::string& out, const Node& part, const Numbers& numbers) {
  if (part.kind == Node::Kind::kText) {
    for (const char c : part.text) out += c == '\'' ? '"' : c;
  } else if (part.kind == Node::Kind::kList) {
    for (const Node& inner : part.items) append_part(out, inner, numbers);
  } else if (const Node* const hex = part.find("hex")) {
    append_hex(out, hex->text);
  } else if (const Node* const byte = part.find("byte")) {
    out += static_cast<char>(numbers.of(*byte));
  } else if (const Node* const repeat = part.find("repeat")) {
    std::string once;
    append_part(once, *repeat, numbers);
    const std::uint64_t count = numbers.of(part.at("count"));
    if (once.size() == 1) {  // by far the most
      out.append(count, once[0]);
      return;
    }
    out.reserve(out.size() + once.size() * count);
    for (std::uint64_t k = 0; k < count; ++k) out += once;
  } else {
    append_each(out, part.at("each").text, numbers.of(part.at("count")),
                part.find("reverse") != nullptr);
  }
}

}  // namespace

std::string HostileCase::file(std::uint64_t shrink) const {
  const Numbers numbers{i, shrink};
  const Numbers exact{i, 1};
  std::string out;
  if (const Node* const whole = row->find("file")) {
    append_part(out, *whole, numbers);
    return out;
  }
  append_part(out, row->at("header"), numbers);
  if (const Node* const put = row->find("put")) {
    std::string more;
    append_part(more, *put, numbers);
    out.insert(numbers.of(row->at("at")), more);
  }
  const Node* const length = row->find("length");
  out.insert(0, length_bytes(length != nullptr ? exact.of(*length) : out.size()));
  if (const Node* const data = row->find("data")) out.append(numbers.of(*data), '\0');
  if (const Node* const cut = row->find("cut")) out.resize(out.size() - exact.of(*cut));
  return out;
}

std::vector<HostileCase> read_hostile_cases(const std::filesystem::path& table) {
  const std::string text = read_text(table);
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  TreeMaker maker;
  if (reader.Parse(stream, maker).IsError()) {
    throw std::runtime_error(
        "the table of hostile cases is not JSON, or has values that no case uses");
  }
  Node root = maker.take();
  std::vector<HostileCase> cases;
  for (const Node& node : root.at("reads").items) {
    const auto row = std::make_shared<const Node>(node);
    HostileCase hostile = {row->at("name").text, row->at("expect").text,
                           row->find("heavy") != nullptr, row, 0};
    if (row->find("from") == nullptr) {
      cases.push_back(hostile);
      continue;
    }
    const std::string name = hostile.name;
    for (hostile.i = row->at("from").number; hostile.i <= row->at("to").number; ++hostile.i) {
      hostile.name = name + ", " + std::to_string(hostile.i);
      cases.push_back(hostile);
    }
  }
  return cases;
}

}  // namespace test
