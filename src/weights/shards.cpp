#include "weights/shards.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "weights/fail.hpp"
#include "weights/json.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string name_of(const fs::path& path) { return display_path(path.filename()); }

constexpr std::size_t kMaxFileName = 4096;  // no path of Linux is longer

/// Checks that a name stays in its directory on every system: no separator, no drive.
void check_bare(const std::string& name, std::string_view tensor, const fs::path& index) {
  const bool bare = !name.empty() && name.size() <= kMaxFileName && name != "." && name != ".." &&
                    name.find_first_of(std::string_view("/\\:\0", 4)) == std::string::npos;
  if (!bare) {
    fail(Errc::bad_name, index, tensor,
         "`" + clipped(name) + "` is not the name of a file beside it");
  }
}

ShardSet read_index(const fs::path& directory, const fs::path& path, const Limits& limits) {
  ShardIndex index = parse_index(read_json(path, Duplicates::refused, limits), path);
  ShardSet set;
  set.index = path;
  for (const std::string& name : index.files) {
    const fs::path file = directory / fs::path(std::u8string(name.begin(), name.end()));
    if (!is_file(file)) {
      const std::size_t number = set.files.size();
      const auto first =
          std::ranges::find(index.places, number, [](const auto& p) { return p.second; });
      fail(Errc::missing_shard, path, first->first, "there is no file `" + clipped(name) + "`");
    }
    set.files.push_back(file);
  }
  set.places = std::move(index.places);
  return set;
}

/// Returns the number between `start` and `end`, of exactly `digits` digits, or up to six if that
/// is 0.
std::optional<std::size_t> number_in(std::string_view text, std::string_view start,
                                     std::string_view end, std::size_t digits) {
  if (text.size() < start.size() + end.size() || !text.starts_with(start) || !text.ends_with(end)) {
    return std::nullopt;
  }
  text.remove_prefix(start.size());
  text.remove_suffix(end.size());
  const bool fits = digits == 0 ? !text.empty() && text.size() <= 6 : text.size() == digits;
  if (!fits || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  std::size_t number = 0;
  for (const char c : text) number = number * 10 + static_cast<std::size_t>(c - '0');
  return number;
}

/// Returns the files of a numbered set in order. Throws missing_shard if one is absent.
std::vector<fs::path> whole_set(const fs::path& directory,
                                const std::map<std::size_t, fs::path>& found, std::size_t first,
                                std::size_t count) {
  std::vector<fs::path> files;
  std::size_t next = first;
  for (const auto& [number, path] : found) {
    if (number != next) break;
    files.push_back(path);
    ++next;
  }
  if (files.size() != found.size() || files.size() != count) {
    fail(Errc::missing_shard, directory, {},
         "of " + std::to_string(count) + " files in a set (as `" + name_of(found.begin()->second) +
             "`) number " + std::to_string(next) + " is absent");
  }
  return files;
}

bool is_pickled(std::string_view name) noexcept {
  return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
}

/// Finds a set without an index, or a single file.
std::vector<fs::path> look_for_files(const fs::path& directory) {
  std::map<std::size_t, std::map<std::size_t, fs::path>> sets;  // by their total
  std::map<std::size_t, fs::path> weights;
  std::vector<fs::path> others;
  std::string pickled;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = name_of(entry.path());
    if (is_pickled(name) && (pickled.empty() || name < pickled)) pickled = name;
    if (!name.ends_with(".safetensors") || !is_file(entry.path())) continue;
    const std::size_t of = name.find("-of-");
    if (of != std::string::npos) {
      const auto number = number_in(std::string_view(name).substr(0, of), "model-", "", 5);
      const auto total = number_in(std::string_view(name).substr(of), "-of-", ".safetensors", 5);
      if (number && total) {
        sets[*total].emplace(*number, entry.path());
        continue;
      }
    }
    if (const auto number = number_in(name, "weights.", ".safetensors", 0)) {
      weights.emplace(*number, entry.path());
      continue;
    }
    others.push_back(entry.path());
  }
  if (sets.size() > 1) {
    fail(Errc::unsupported, directory, {}, "there are model files of several sets");
  }
  if (!sets.empty()) {
    return whole_set(directory, sets.begin()->second, 1, sets.begin()->first);
  }
  if (!weights.empty()) {
    return whole_set(directory, weights, 0, weights.rbegin()->first + 1);
  }
  if (others.empty() && !pickled.empty()) {
    fail(Errc::unsupported, directory, {},
         "there is no safetensors file, and pickled weights (`" + clipped(pickled) +
             "`) are not read");
  }
  if (others.empty()) {
    fail(Errc::missing_shard, directory, {}, "there is no safetensors file");
  }
  if (others.size() > 1) {
    std::sort(others.begin(), others.end());
    fail(Errc::unsupported, directory, {},
         "there are " + std::to_string(others.size()) + " safetensors files (`" +
             name_of(others[0]) + "`, `" + name_of(others[1]) +
             "`, ...): name one of them, or add an index");
  }
  return others;
}

}  // namespace

ShardIndex parse_index(const Json& json, const fs::path& path) {
  const Json* map = json.find("weight_map");
  if (map == nullptr || map->as_object() == nullptr) {
    fail(Errc::json, path, "weight_map", "there is no such object");
  }
  ShardIndex index;
  std::map<std::string_view, std::size_t> numbers;
  for (const Json::Member& member : *map->as_object()) {
    const std::string* name = member.second.as_string();
    if (name == nullptr) {
      fail(Errc::json, path, member.first,
           "a file name was expected, not " + std::string(member.second.kind()));
    }
    const auto [found, is_new] = numbers.try_emplace(*name, index.files.size());
    if (is_new) {
      check_bare(*name, member.first, path);
      index.files.push_back(*name);
    }
    index.places.emplace_back(member.first, found->second);
  }
  if (index.files.empty()) fail(Errc::missing_shard, path, "weight_map", "it names no file");
  std::sort(index.places.begin(), index.places.end());
  return index;
}

ShardSet find_shards(const fs::path& directory, const Limits& limits) {
  const fs::path index = directory / "model.safetensors.index.json";
  if (is_file(index)) return read_index(directory, index, limits);
  const fs::path single = directory / "model.safetensors";
  if (is_file(single)) return {{single}, {}, {}};
  try {
    return {look_for_files(directory), {}, {}};
  } catch (const fs::filesystem_error& error) {
    throw WeightsError(Errc::io, directory, {}, 0, error.code().message(), error.code().value());
  }
}

}  // namespace safetensors::weights
