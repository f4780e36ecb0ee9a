#include "gguf/set.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "base/display_path.hpp"
#include "base/parse_integer.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"

namespace safetensors::weights {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNoKey = "split.no";
constexpr std::string_view kCountKey = "split.count";
constexpr std::string_view kTensorsKey = "split.tensors.count";

/// The pieces of STEM-00001-of-00003.gguf. Numbers start at 1.
struct PartName {
  std::u8string stem;
  std::uint32_t number = 0;
  std::uint32_t count = 0;
};

constexpr std::size_t kNumberDigits = 5;

std::optional<std::uint32_t> number_of(std::u8string_view digits) {
  return parse_integer<std::uint32_t>(std::string(digits.begin(), digits.end()));
}

std::optional<PartName> part_name_of(const fs::path& path) {
  constexpr std::u8string_view kOf = u8"-of-";
  constexpr std::u8string_view kEnd = u8".gguf";
  constexpr std::size_t kTail = 1 + kNumberDigits + kOf.size() + kNumberDigits + kEnd.size();
  const std::u8string name = path.filename().u8string();
  if (name.size() < kTail) return std::nullopt;
  const std::u8string_view tail = std::u8string_view(name).substr(name.size() - kTail);
  if (tail[0] != u8'-' || tail.substr(1 + kNumberDigits, kOf.size()) != kOf ||
      !tail.ends_with(kEnd)) {
    return std::nullopt;
  }
  const auto number = number_of(tail.substr(1, kNumberDigits));
  const auto count = number_of(tail.substr(1 + kNumberDigits + kOf.size(), kNumberDigits));
  if (!number || !count) return std::nullopt;
  return PartName{name.substr(0, name.size() - kTail), *number, *count};
}

/// Returns the path of part `number` in the directory of `path`.
fs::path part_path(const fs::path& path, const PartName& name, std::uint32_t number) {
  std::array<char, 32> tail{};
  const int size =
      std::snprintf(tail.data(), tail.size(), "-%05u-of-%05u.gguf", number, name.count);
  return path.parent_path() / fs::path(name.stem + std::u8string(tail.data(), tail.data() + size));
}

/// Reads a number that every part of a split model must have.
std::uint64_t split_number(const GgufFile& file, std::string_view key) {
  const MetaValue* const value = file.header().metadata.find(key);
  if (value == nullptr) {
    fail(Errc::config, file.path(), key, "this part of a split model does not say it");
  }
  const auto number = value->as_uint64();
  if (!number) {
    fail(Errc::config, file.path(), key,
         "it must be a number from 0 on, and is of type " + std::string(name(value->type())));
  }
  return *number;
}

/// Returns the number of parts; 1 if the model is not split.
std::uint64_t part_count(const GgufFile& file) {
  if (file.header().metadata.find(kCountKey) == nullptr) return 1;
  return std::max<std::uint64_t>(split_number(file, kCountKey), 1);
}

void check_part(const GgufFile& file, std::uint64_t index, std::uint64_t count) {
  const auto check = [&](std::string_view key, std::uint64_t wanted) {
    const std::uint64_t found = split_number(file, key);
    if (found == wanted) return;
    fail(Errc::config, file.path(), key,
         "it is " + std::to_string(found) + ", by the file's name and the other parts it must be " +
             std::to_string(wanted));
  };
  check(kCountKey, count);
  check(kNoKey, index);
}

/// Opens the other parts and returns all of them in order.
std::vector<GgufFile> open_parts(const Files& files, GgufFile opened, std::uint64_t count,
                                 const GgufOptions& options) {
  const fs::path path = opened.path();
  const std::string parts = std::to_string(count) + " parts";
  if (count > options.limits.parts) {
    fail(Errc::limit, path, kCountKey,
         "the model has " + parts + ", at most " + std::to_string(options.limits.parts) +
             " are allowed");
  }
  const auto name = part_name_of(path);
  if (!name) {
    fail(Errc::missing_shard, path, {},
         "this is one of " + parts +
             ", and the others cannot be found: its name does not end as in " +
             "-00001-of-00003.gguf");
  }
  if (name->count != count || name->number == 0 || name->number > count) {
    fail(Errc::config, path, kCountKey, "the model has " + parts + ", and its name says otherwise");
  }
  std::vector<GgufFile> all;
  for (std::uint32_t number = 1; number <= count; ++number) {
    if (number == name->number) continue;
    const fs::path part = part_path(path, *name, number);
    try {
      all.emplace_back(files, part, options);
    } catch (const WeightsError& error) {
      if (error.os_error() != ENOENT) throw;
      fail(Errc::missing_shard, part, {},
           "part " + std::to_string(number) + " of " + std::to_string(count) + " does not exist");
    }
  }
  all.insert(all.begin() + (name->number - 1), std::move(opened));
  for (std::size_t i = 0; i < all.size(); ++i) check_part(all[i], i, count);
  return all;
}

void check_tensor_count(std::span<const GgufFile> files, std::uint64_t found) {
  for (const GgufFile& file : files) {
    const std::uint64_t claimed = split_number(file, kTensorsKey);
    if (claimed == found) continue;
    fail(Errc::config, file.path(), kTensorsKey,
         "it is " + grouped(claimed) + ", all parts together have " + grouped(found) + " tensors");
  }
}

}  // namespace

GgufSet::GgufSet(const Files& files, const fs::path& path, const GgufOptions& options) {
  GgufFile opened(files, path, options);
  const std::uint64_t count = part_count(opened);
  if (count > 1) {
    files_ = open_parts(files, std::move(opened), count, options);
  } else {
    files_.push_back(std::move(opened));
  }
  for (const GgufFile& file : files_) {
    for (const GgufTensor& tensor : file.header().tensors) tensors_.push_back({&file, &tensor});
  }
  const auto name_of = [&](std::size_t i) { return tensors_[i].tensor->name; };
  if (const auto twice = index_.build(tensors_.size(), name_of)) {
    fail(Errc::duplicate, tensors_[twice->first].file->path(), name_of(twice->first),
         "a tensor of that name is in `" +
             display_path(tensors_[twice->second].file->path().filename()) + "` too");
  }
  if (count > 1) check_tensor_count(files_, tensors_.size());
}

const GgufSource* GgufSet::find(std::string_view name) const noexcept {
  const auto at = index_.find(name, [&](std::size_t i) { return tensors_[i].tensor->name; });
  return at ? &tensors_[*at] : nullptr;
}

std::vector<fs::path> gguf_models(const Files& files, const fs::path& directory) {
  std::vector<fs::path> paths = files.list(directory);
  // macOS writes a hidden file `._NAME` beside each file on foreign file systems.
  std::erase_if(paths, [](const fs::path& path) {
    return path.extension() != ".gguf" || path.filename().u8string().starts_with(u8'.');
  });
  std::ranges::sort(paths);
  std::set<std::u8string> models;
  std::erase_if(paths, [&](const fs::path& path) {
    // Parts of one model have the same name here: their stem and number of parts.
    const auto part = part_name_of(path);
    return part && !models.insert(part_path({}, *part, 0).u8string()).second;
  });
  return paths;
}

std::optional<fs::path> find_gguf(const Files& files, const fs::path& directory) {
  const std::vector<fs::path> models = gguf_models(files, directory);
  if (models.empty()) return std::nullopt;
  if (models.size() > 1) {
    fail(Errc::unsupported, directory, {},
         "there are several GGUF models, among them `" + display_path(models[0].filename()) +
             "` and `" + display_path(models[1].filename()) + "`: name one of them");
  }
  return models.front();
}

}  // namespace safetensors::weights
