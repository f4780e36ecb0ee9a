#include "safetensors/update_file.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/display_path.hpp"
#include "base/name_suggestions.hpp"
#include "base/text.hpp"
#include "io/file_source.hpp"
#include "safetensors/detail/in_place.hpp"
#include "safetensors/detail/recovery.hpp"
#include "safetensors/detail/updated_specs.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/error.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/writer.hpp"
#if !defined(_WIN32)
#include "write/recovery.hpp"
#endif

namespace safetensors {
namespace {

std::string described_spec(const TensorSpec& spec) {
  return std::string(name(spec.dtype)) + " " +
         shown(std::span(spec.shape.data(), spec.shape.size()));
}

[[noreturn]] void refuse_update(const std::filesystem::path& path, std::string_view tensor,
                                const std::string& why,
                                ErrorCode code = ErrorCode::kInvalidArgument) {
  fail(code, display_path(path) + ": tensor `" + clipped(tensor) + "` " + why,
       {.path = path, .subject = std::string(tensor)});
}

std::vector<TensorSpec> specs_in(const SafeOpen& file) {
  std::vector<TensorSpec> specs;
  for (const TensorInfo& info : file.header().tensors()) {
    specs.push_back({info.name, info.shape, info.dtype});
  }
  return specs;
}

std::vector<TensorSpec> specs_of(std::span<const TensorData> tensors) {
  std::vector<TensorSpec> specs;
  for (const TensorData& tensor : tensors)
    specs.push_back({tensor.name, tensor.shape, tensor.dtype});
  return specs;
}

/// Returns the metadata of the new file; nothing if it has none.
std::optional<Metadata> updated_metadata(const SafeOpen& file, const UpdateOptions& options) {
  if (options.metadata != nullptr) return *options.metadata;
  if (options.remove_metadata || !file.header().has_metadata()) return std::nullopt;
  Metadata kept;
  for (const auto& [key, value] : file.metadata()) kept.emplace(key, value);
  return kept;
}

void update_in_new_file(const std::filesystem::path& path, std::span<const TensorData> tensors,
                        const UpdateOptions& options) {
  const FileId before = FileSource::open(path)->id();
  std::optional<SafeOpen> file(std::in_place, path, OpenOptions{.backend = Backend::kPread});
  const std::vector<TensorSpec> specs =
      detail::updated_specs(path, specs_in(*file), specs_of(tensors), options.remove, options.add);
  const std::optional<Metadata> metadata = updated_metadata(*file, options);
  const auto sums = detail::sums_of_save(
      path, {.fsync = options.fsync, .sums = options.sums, .interrupt = options.interrupt});
  FileWriter writer(
      make_file_sink(path, {}, options.interrupt, sums->before_rename(path)),
      plan_file(specs, metadata ? &*metadata : nullptr, Layout::kGiven, file->data_offset()),
      {.fsync = options.fsync, .interrupt = options.interrupt, .progress = options.progress});

  std::map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < specs.size(); ++i) numbers.emplace(specs[i].name, i);
  std::set<std::string_view> changed;
  for (const TensorData& tensor : tensors) changed.insert(tensor.name);
  std::vector<TensorCopy> copies;
  for (const auto& [name, number] : numbers) {
    if (!changed.contains(name)) copies.push_back({number, file->position(file->at(name))});
  }
  // First, so that the file system need not find space for what it can share.
  if (!copies.empty()) writer.copy(*file->source(), copies);
  for (const TensorData& tensor : tensors) writer.write(numbers.at(tensor.name), tensor.bytes);
  file.reset();  // Windows cannot replace an open file
  if (FileSource::open(path)->id() != before) {
    fail(ErrorCode::kFileChanged,
         display_path(path) + " was replaced or written to while it was being updated",
         {.path = path});
  }
  writer.commit();
  sums->commit(options.fsync);
}

void update_in_place(const std::filesystem::path& path, std::span<const TensorData> tensors,
                     const UpdateOptions& options) {
  if (options.add || !options.remove.empty() || options.metadata != nullptr ||
      options.remove_metadata || options.sums) {
    fail(ErrorCode::kInvalidArgument,
         "in_place changes tensors; add, remove, metadata and sums need a new file",
         {.path = path});
  }
#if defined(_WIN32)
  (void)tensors;
  fail(ErrorCode::kInvalidArgument,
       display_path(path) + " is not changed in place: that is not supported on Windows",
       {.path = path});
#else
  const std::filesystem::path file = absolute_path(path);
  const detail::Folder folder = detail::Folder::open(file.parent_path());
  const std::vector<std::string> names = {file.filename().native()};
  (void)detail::recover_changes(folder, names);
  detail::InPlaceChange change(folder, names, names.front(),
                               {.shared = options.shared, .interrupt = options.interrupt});
  (void)detail::updated_specs(path, specs_in(change.file(0)), specs_of(tensors), {}, false);
  std::uint64_t total = 0;
  for (const TensorData& tensor : tensors) total += change.at(tensor.name).nbytes();
  std::uint64_t done = 0;
  for (const TensorData& tensor : tensors) {
    change.write(tensor.name, tensor.bytes);
    done += tensor.bytes.size();
    if (options.progress) options.progress(done, total);
  }
  change.commit();
#endif
}

}  // namespace

std::vector<TensorSpec> detail::updated_specs(const std::filesystem::path& path,
                                              std::span<const TensorSpec> old,
                                              std::span<const TensorSpec> now,
                                              std::span<const std::string_view> removed, bool add) {
  std::map<std::string_view, const TensorSpec*> known;
  for (const TensorSpec& spec : old) known.emplace(spec.name, &spec);
  const auto refuse_unknown = [&](std::string_view tensor, const char* advice) {
    fail(ErrorCode::kTensorNotFound,
         display_path(path) + ": there is no tensor `" + clipped(tensor) + "`" + advice +
             name_suggestions(tensor, old | std::views::transform(&TensorSpec::name)),
         {.path = path, .subject = std::string(tensor)});
  };
  std::set<std::string_view> gone;
  for (const std::string_view tensor : removed) {
    if (!known.contains(tensor)) refuse_unknown(tensor, "");
    if (!gone.insert(tensor).second) refuse_update(path, tensor, "is removed twice");
  }
  std::vector<TensorSpec> specs;
  for (const TensorSpec& spec : old) {
    if (!gone.contains(spec.name)) specs.push_back(spec);
  }
  std::set<std::string_view> given;
  for (const TensorSpec& spec : now) {
    if (!given.insert(spec.name).second) {
      refuse_update(path, spec.name, "is given twice", ErrorCode::kDuplicateName);
    }
    if (gone.contains(spec.name)) refuse_update(path, spec.name, "is both changed and removed");
    const auto found = known.find(spec.name);
    if (found == known.end()) {
      if (!add) refuse_unknown(spec.name, "; the option `add` adds it");
      specs.push_back(spec);
    } else if (const TensorSpec& before = *found->second;
               before.dtype != spec.dtype || !std::ranges::equal(before.shape, spec.shape)) {
      refuse_update(path, spec.name,
                    "is " + described_spec(before) + " in the file, but " + described_spec(spec) +
                        " was given");
    }
  }
  return specs;
}

void update_file(const std::filesystem::path& path, std::span<const TensorData> tensors,
                 const UpdateOptions& options) {
  if (options.metadata != nullptr && options.remove_metadata) {
    fail(ErrorCode::kInvalidArgument, "the metadata is both replaced and removed", {.path = path});
  }
  if (options.in_place) {
    update_in_place(path, tensors, options);
  } else {
    update_in_new_file(path, tensors, options);
  }
}

}  // namespace safetensors
