#include "tensors/source_tensors.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/checked.hpp"
#include "base/display_path.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "safetensors/mapped_file.hpp"

namespace safetensors::weights {
namespace {

std::string_view tensor_name(const SourceTensor& tensor) noexcept { return tensor.info->name; }

/// Throws missing_shard for a file that the index of a model names.
[[noreturn]] void fail_absent(const FoundModel& found, const ShardIndex& index,
                              const std::filesystem::path& path) {
  std::size_t tensor = 0;
  while (found.path(index.file(tensor)) != path) ++tensor;
  fail(Errc::missing_shard, found.folder / path_of_name(found.index), index.name(tensor),
       "there is no file `" + clipped(found.files[index.file(tensor)]) + "`");
}

/// Opens the files without the index, which would leave tensors out.
safetensors::Model open_files(const Files& files, const FoundModel& found, bool mmap) {
  FoundModel listed;
  listed.folder = found.folder;
  listed.files = found.files;
  return with_error_context(found.folder, {}, [&] {
    return safetensors::Model(std::move(listed), [&, mmap](const std::filesystem::path& path) {
      try {
        return files.open_safetensors(path, mmap);
      } catch (const safetensors::Error& error) {
        if (found.content && error.os_error() == ENOENT) fail_absent(found, *found.content, path);
        rethrow_core_error(error, path);
      }
    });
  });
}

/// Returns whether the bytes of a file are in memory: mapped, or those of a source.
bool is_in_memory(const SafeOpen& file) {
  return file.mapping() != nullptr ||
         (file.backend() == safetensors::Backend::kSource && !file.source()->memory().empty());
}

}  // namespace

StoredBytes SourceTensor::bytes(std::uint64_t begin, std::uint64_t end,
                                const Interrupt& interrupt) const {
  return with_error_context(file->path(), info->name, [&]() -> StoredBytes {
    if (is_in_memory(*file)) {
      const TensorView view = file->get_tensor(*info);
      const std::span<const std::byte> bytes = view.bytes().subspan(
          static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      if (file->mapping() != nullptr && is_truncated(bytes)) {
        fail(Errc::io, file->path(), info->name, "the file is shorter than when it was opened");
      }
      return {bytes, view.owner(), true};
    }
    auto memory = std::make_shared<safetensors::Buffer>(memory_size(end - begin));
    file->read(*info, ByteRuns{begin, end - begin, {}}, memory->bytes(), interrupt);
    const std::span<const std::byte> bytes = memory->bytes();
    return {bytes, std::move(memory)};
  });
}

StoredColumns SourceTensor::columns(std::uint64_t begin, std::uint64_t end,
                                    const Interrupt& interrupt) const {
  const std::uint64_t rows = info->shape[0];
  const std::uint64_t row = rows == 0 ? 0 : info->nbytes() / rows;
  if (rows == 0 || begin == end) return {};
  if (is_in_memory(*file)) {
    return {bytes(begin, (rows - 1) * row + end, interrupt), row};
  }
  return with_error_context(file->path(), info->name, [&]() -> StoredColumns {
    const std::uint64_t width = end - begin;
    const ByteRuns runs{begin, width, {{rows, row, width}}};
    auto memory = std::make_shared<safetensors::Buffer>(memory_size(rows * width));
    file->read(*info, runs, memory->bytes(), interrupt);
    const std::span<const std::byte> read = memory->bytes();
    return {{read, std::move(memory)}, width};
  });
}

void SourceTensor::read(std::span<std::byte> to, const Interrupt& interrupt) const {
  with_error_context(file->path(), info->name, [&] { file->read(*info, to, interrupt); });
}

SourceTensors::SourceTensors(const Files& files, const FoundModel& found,
                             const ModelOptions& options, std::vector<std::string>& warnings) {
  const safetensors::Model model = open_files(files, found, options.mmap);
  with_error_context(found.folder, {}, [&] { found.check_index(); });
  files_.reserve(model.file_count());
  for (std::size_t i = 0; i < model.file_count(); ++i) files_.push_back(model.file(i));
  tensors_.reserve(model.size());
  for (std::size_t i = 0; i < model.size(); ++i) {
    const ModelTensor tensor = model.tensor(i);
    tensors_.push_back({&files_[tensor.file], tensor.info});
  }
  if (found.content) check_index(found, *found.content, options.strict_index, warnings);
}

const SourceTensor* SourceTensors::find(std::string_view name) const noexcept {
  const auto tensor = std::ranges::lower_bound(tensors_, name, {}, tensor_name);
  return tensor != tensors_.end() && tensor_name(*tensor) == name ? &*tensor : nullptr;
}

void SourceTensors::check_index(const FoundModel& found, const ShardIndex& index, bool strict,
                                std::vector<std::string>& warnings) const {
  const SourceTensor* extra = nullptr;  // the first
  std::size_t extras = 0;
  std::size_t next = 0;                          // in the index
  for (const SourceTensor& tensor : tensors_) {  // sorted, as the index is
    const int order = next == index.size() ? -1 : tensor_name(tensor).compare(index.name(next));
    if (order > 0 || (order == 0 && tensor.file != &files_[index.file(next)])) break;
    if (order == 0) {
      ++next;
    } else if (extras++ == 0) {
      extra = &tensor;
    }
  }
  if (next != index.size()) {
    fail(Errc::unknown_tensor, found.folder / path_of_name(found.index), index.name(next),
         "`" + display_path(found.path(index.file(next)).filename()) +
             "`, which the index names, does not contain it");
  }
  if (extra == nullptr) return;
  if (strict) {
    fail(Errc::unknown_tensor, extra->file->path(), extra->info->name,
         "the index does not name it (strict_index=false allows that)");
  }
  warnings.push_back("the index does not name `" + clipped(extra->info->name) + "`");
  if (extras > 1) warnings.back() += " and " + grouped(extras - 1) + " more";
}

}  // namespace safetensors::weights
