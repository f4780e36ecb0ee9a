// Which tensors of several files are a model.
#include "safetensors/detail/model_tensors.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "format/name_order.hpp"
#include "safetensors/error.hpp"

namespace safetensors::detail {

void fail_absent(std::string_view name, const std::filesystem::path& file,
                 const std::filesystem::path& index) {
  fail(ErrorCode::kTensorNotFound,
       "The index " + display_path(index) + " puts tensor '" + clipped(name) + "' into " +
           display_path(file) + ", which has no such tensor",
       {.path = file, .subject = std::string(name)});
}

std::vector<const TensorInfo*> entries_of(const Header& header,
                                          std::span<const std::string_view> names,
                                          const std::filesystem::path& file,
                                          const std::filesystem::path& index) {
  std::vector<const TensorInfo*> entries;
  // An index may claim far more names than the header can hold.
  entries.reserve(std::min(names.size(), header.size()));
  // Most files have their tensors in the order of the index: then the next one is the next.
  const std::span<const TensorInfo> all = header.tensors();
  std::size_t next = 0;
  for (const std::string_view name : names) {
    const bool is_next = next < all.size() && all[next].name == name;
    const TensorInfo* const entry = is_next ? &all[next] : header.find(name);
    if (entry == nullptr) fail_absent(name, file, index);
    entries.push_back(entry);
    next = static_cast<std::size_t>(entry - all.data()) + 1;
  }
  return entries;
}

std::vector<const TensorInfo*> sorted_entries(
    std::span<const std::span<const TensorInfo>> files,
    const std::function<std::filesystem::path(std::size_t file)>& path_of) {
  std::size_t count = 0;
  for (const std::span<const TensorInfo> file : files) count += file.size();
  std::vector<const TensorInfo*> entries;
  entries.reserve(count);
  for (const std::span<const TensorInfo> file : files) {
    for (const TensorInfo& entry : file) entries.push_back(&entry);
  }
  format::sort_by_name(entries);
  const auto twice = std::ranges::adjacent_find(
      entries, [](const TensorInfo* a, const TensorInfo* b) { return a->name == b->name; });
  if (twice == entries.end()) return entries;
  const FileOfEntry file_of(files);
  const auto [first, second] = std::minmax({file_of(*twice), file_of(*std::next(twice))});
  const std::string name((*twice)->name);
  fail(ErrorCode::kDuplicateName,
       "Tensor '" + clipped(name) + "' is in two files: " + display_path(path_of(first)) + " and " +
           display_path(path_of(second)),
       {.path = path_of(second), .subject = name});
}

FileOfEntry::FileOfEntry(std::span<const std::span<const TensorInfo>> files) {
  ranges_.reserve(files.size());
  for (std::size_t file = 0; file < files.size(); ++file) {
    if (!files[file].empty()) ranges_.push_back({files[file].data(), file});
  }
  std::ranges::sort(ranges_, std::less<>(), &Range::begin);
}

std::size_t FileOfEntry::operator()(const TensorInfo* entry) const noexcept {
  return std::prev(std::ranges::upper_bound(ranges_, entry, std::less<>(), &Range::begin))->file;
}

}  // namespace safetensors::detail
