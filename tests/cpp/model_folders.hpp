// Reads tests/data/model_folders.txt, a table of folders. Its first lines explain it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "safetensors/model_files.hpp"

namespace test {

/// A row of the table with one of its choices.
struct ModelFolder {
  std::string title{};
  std::vector<std::string> names{};  ///< in the folder itself
  std::set<std::string> there{};     ///< what exists, also in folders below
  std::map<std::string, std::vector<std::string>> indexes{};
  safetensors::ModelChoice choice{};
  std::string answer{};
};

/// Returns whether a name in the folder is a link to nothing.
bool has_dead_links(const ModelFolder& folder);

/// Returns words with a space between them.
std::string joined(const std::vector<std::string>& words);

/// Reads a table. Any text is one: what no rule of it fits is taken for the name of a file.
std::vector<ModelFolder> read_model_folders(const std::string& text);

}  // namespace test
