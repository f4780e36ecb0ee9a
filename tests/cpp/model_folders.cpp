#include "model_folders.hpp"

#include <algorithm>
#include <sstream>
#include <utility>

namespace test {
namespace {

using Names = std::vector<std::string>;

Names words_of(const std::string& text) {
  std::istringstream in(text);
  Names words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// Returns the files that the words stand for: "X-*-of-0000N.safetensors" is N of them.
Names expanded(const Names& words) {
  constexpr std::string_view kAll = "*-of-0000";
  Names files;
  for (const std::string& word : words) {
    const std::size_t star = word.find(kAll);
    const std::size_t digit = star + kAll.size();
    if (star == std::string::npos || digit >= word.size() || word[digit] < '1' ||
        word[digit] > '9') {
      files.push_back(word);
      continue;
    }
    for (char number = '1'; number <= word[digit]; ++number) {
      files.push_back(word.substr(0, star) + "0000" + number + word.substr(star + 1));
    }
  }
  return files;
}

void add_choice(std::vector<ModelFolder>& rows, ModelFolder row, const std::string& line,
                std::size_t arrow) {
  for (const std::string& word : words_of(line.substr(0, arrow))) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    (word.starts_with("name=") ? row.choice.name : row.choice.variant) = word.substr(equals + 1);
  }
  row.answer = joined(expanded(words_of(line.substr(arrow + 2))));
  rows.push_back(std::move(row));
}

void add_file(ModelFolder& row, const std::string& line) {
  const std::size_t equals = line.find(" = ");
  for (std::string file : expanded(words_of(line.substr(0, equals)))) {
    const bool is_dead = file.starts_with('@');
    if (is_dead) file.erase(0, 1);
    if (!is_dead) row.there.insert(file);
    if (file.find('/') == std::string::npos) row.names.push_back(file);
    if (equals == std::string::npos) continue;
    Names& named = row.indexes[file] = expanded(words_of(line.substr(equals + 3)));
    for (std::string& each : named) {  // as ShardIndex does
      if (each.starts_with("./")) each.erase(0, 2);
    }
    std::ranges::sort(named);
  }
}

}  // namespace

bool has_dead_links(const ModelFolder& folder) {
  return !std::ranges::all_of(folder.names,
                              [&](const std::string& name) { return folder.there.contains(name); });
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<ModelFolder> read_model_folders(const std::string& text) {
  std::istringstream lines(text);
  std::vector<ModelFolder> rows;
  ModelFolder row;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    if (line[0] != ' ') {
      row = {.title = line};
      continue;
    }
    const std::size_t arrow = line.find("->");
    arrow == std::string::npos ? add_file(row, line) : add_choice(rows, row, line, arrow);
  }
  return rows;
}

}  // namespace test
