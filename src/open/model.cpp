// Models of several files. model_tensors.cpp has the rule which of their tensors are the model.
#include "safetensors/model.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <mutex>
#include <optional>
#include <ranges>
#include <string>
#include <utility>

#include "base/display_path.hpp"
#include "base/name_suggestions.hpp"
#include "base/per_process.hpp"
#include "base/text.hpp"
#include "open/early_opens.hpp"
#include "open/model_files.hpp"
#include "safetensors/detail/model_tensors.hpp"
#include "safetensors/error.hpp"
#include "safetensors/parallel.hpp"

namespace safetensors {

class Model::State {
 public:
  State(FoundModel found, Opener opener)
      : found_(std::move(found)),
        opener_(std::move(opener)),
        slots_(std::make_unique<Slot[]>(found_.files.size())) {
    if (found_.content) {
      if (found_.content->files().size() != found_.files.size()) {
        fail(ErrorCode::kInvalidArgument, "the files of the model are not those of its index",
             {.path = found_.folder});
      }
      index_path_ = found_.folder / path_of_name(found_.index);
      entries_.resize(found_.content->size());
      group_by_file(*found_.content);
    } else {
      open_all();
      sort_all();
    }
  }

  [[nodiscard]] const FoundModel& found() const noexcept { return found_; }

  [[nodiscard]] const SafeOpen& file(std::size_t number) const {
    Slot& slot = slots_[number];
    if (const SafeOpen* const opened = slot.opened.load(std::memory_order_acquire)) return *opened;
    const std::lock_guard lock(slot.mutex.get());
    if (const SafeOpen* const opened = slot.opened.load(std::memory_order_acquire)) return *opened;
    const SafeOpen* const file = open_in(slot, number);
    found_.check_index();
    slot.opened.store(file, std::memory_order_release);
    return *file;
  }

  void open_all() const {
    constexpr std::uint64_t kCost = 1 << 20;  // opening a file takes about as long as reading this
    const std::size_t count = found_.files.size();
    std::atomic<bool> is_any_new = false;
    parallel_for(count, count * kCost, [&](std::size_t number) {
      Slot& slot = slots_[number];
      if (slot.opened.load(std::memory_order_acquire) != nullptr) return;
      const std::lock_guard lock(slot.mutex.get());
      (void)open_in(slot, number);
      is_any_new.store(true, std::memory_order_relaxed);
    });
    if (!is_any_new) return;
    found_.check_index();  // once for all of them
    for (std::size_t number = 0; number < count; ++number) {
      Slot& slot = slots_[number];
      slot.opened.store(slot.file.load(std::memory_order_acquire), std::memory_order_release);
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

  [[nodiscard]] std::string_view name(std::size_t tensor) const noexcept {
    return found_.content ? found_.content->name(tensor) : entries_[tensor]->name;
  }

  [[nodiscard]] std::size_t file_of(std::size_t tensor) const noexcept {
    return found_.content ? found_.content->file(tensor) : file_of_entry_(entries_[tensor]);
  }

  [[nodiscard]] ModelTensor tensor(std::size_t number) const {
    const std::size_t in = file_of(number);
    (void)file(in);  // sets the entry
    return {entries_[number], in};
  }

  [[nodiscard]] std::optional<std::size_t> number_of(std::string_view wanted) const noexcept {
    const auto numbers = std::views::iota(std::size_t{0}, size());
    const auto found = std::ranges::lower_bound(
        numbers, wanted, {}, [this](std::size_t number) { return name(number); });
    if (found == numbers.end() || name(*found) != wanted) return std::nullopt;
    return *found;
  }

  /// Returns the path that errors about the model as a whole name.
  [[nodiscard]] std::filesystem::path path() const {
    if (found_.content) return index_path_;
    return found_.files.size() == 1 ? found_.path(0) : found_.folder;
  }

 private:
  struct Slot {
    Slot() = default;
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    ~Slot() {
      delete file.load(std::memory_order_relaxed);
      mutex.reset();
    }

    // A forked process opens the file that a thread of its parent was opening anew.
    PerProcess<std::mutex> mutex;
    // Set after the entries of its tensors; it may be of a newer model than the index.
    std::atomic<const SafeOpen*> file = nullptr;
    std::atomic<const SafeOpen*> opened = nullptr;  // the same, once the index was looked at
  };

  /// Returns the file of a locked slot, and opens it if it is not open. Leaves the index to the
  /// caller, unless the file cannot be opened.
  const SafeOpen* open_in(Slot& slot, std::size_t number) const {
    if (const SafeOpen* const file = slot.file.load(std::memory_order_acquire)) return file;
    try {
      auto file = std::make_unique<const SafeOpen>(open(number));
      if (found_.content) find_entries(number, *file);
      slot.file.store(file.get(), std::memory_order_release);
      return file.release();
    } catch (const Error&) {
      found_.check_index();  // a newer model may lack the file or its tensors
      throw;
    }
  }

  /// Returns the numbers of the tensors that the index puts into a file.
  [[nodiscard]] std::span<const std::uint32_t> tensors_of(std::size_t file) const noexcept {
    return std::span(by_file_).subspan(begins_[file], begins_[file + 1] - begins_[file]);
  }

  void group_by_file(const ShardIndex& index) {
    begins_.resize(found_.files.size() + 1);
    for (std::size_t i = 0; i < index.size(); ++i) ++begins_[index.file(i) + 1];
    for (std::size_t file = 1; file < begins_.size(); ++file) begins_[file] += begins_[file - 1];
    std::vector<std::uint32_t> next(begins_.begin(), std::prev(begins_.end()));
    by_file_.resize(index.size());
    for (std::size_t i = 0; i < index.size(); ++i) {
      by_file_[next[index.file(i)]++] = static_cast<std::uint32_t>(i);
    }
  }

  void sort_all() {
    std::vector<std::span<const TensorInfo>> files;
    files.reserve(found_.files.size());
    for (std::size_t i = 0; i < found_.files.size(); ++i) {
      files.push_back(file(i).header().tensors());
    }
    entries_ = detail::sorted_entries(files, [this](std::size_t i) { return found_.path(i); });
    file_of_entry_ = detail::FileOfEntry(files);
  }

  [[nodiscard]] SafeOpen open(std::size_t number) const {
    const std::filesystem::path path = found_.path(number);
    try {
      return opener_(path);
    } catch (const Error& error) {
      if (!found_.content || error.os_error() != ENOENT) throw;
      const std::string name(this->name(tensors_of(number).front()));
      fail(ErrorCode::kIncompleteModel,
           "The index " + display_path(index_path_) + " puts tensor '" + clipped(name) +
               "' into a file that is missing",
           {.path = path,
            .subject = name,
            .os_error = ENOENT,
            .operation = ErrorContext::Operation::kRead});
    }
  }

  /// Sets the entries of the tensors that the index puts into a file.
  void find_entries(std::size_t number, const SafeOpen& file) const {
    const std::span<const std::uint32_t> tensors = tensors_of(number);
    std::vector<std::string_view> names;
    names.reserve(tensors.size());
    for (const std::uint32_t tensor : tensors) names.push_back(name(tensor));
    const auto entries = detail::entries_of(file.header(), names, file.path(), index_path_);
    for (std::size_t i = 0; i < tensors.size(); ++i) entries_[tensors[i]] = entries[i];
  }

  FoundModel found_;
  std::filesystem::path index_path_;
  Opener opener_;
  std::unique_ptr<Slot[]> slots_;
  // By number. With an index, those of a file are set before its slot says that it is open.
  mutable std::vector<const TensorInfo*> entries_;
  // With an index: the numbers of the tensors of file i are by_file_[begins_[i]] to
  // by_file_[begins_[i + 1]].
  std::vector<std::uint32_t> begins_;
  std::vector<std::uint32_t> by_file_;
  detail::FileOfEntry file_of_entry_{{}};  // without an index
};

Model::Model(FoundModel files, Opener opener)
    : state_(std::make_shared<const State>(std::move(files), std::move(opener))) {}

const FoundModel& Model::found() const& noexcept { return state_->found(); }

const SafeOpen& Model::file(std::size_t file) const& { return state_->file(file); }

void Model::open_all() const { state_->open_all(); }

std::size_t Model::size() const noexcept { return state_->size(); }

std::string_view Model::name(std::size_t tensor) const& noexcept { return state_->name(tensor); }

std::size_t Model::file_of(std::size_t tensor) const noexcept { return state_->file_of(tensor); }

std::optional<std::size_t> Model::number_of(std::string_view name) const noexcept {
  return state_->number_of(name);
}

ModelTensor Model::tensor(std::size_t tensor) const& { return state_->tensor(tensor); }

std::optional<ModelTensor> Model::find(std::string_view name) const& {
  const std::optional<std::size_t> number = number_of(name);
  if (!number) return std::nullopt;
  return tensor(*number);
}

ModelTensor Model::at(std::string_view name) const& {
  if (const std::optional<ModelTensor> found = find(name)) return *found;
  const auto names = std::views::iota(std::size_t{0}, size()) |
                     std::views::transform([this](std::size_t i) { return state_->name(i); });
  fail(ErrorCode::kTensorNotFound,
       "The model does not contain tensor " + clipped(name) + name_suggestions(name, names),
       {.path = state_->path(), .subject = std::string(name)});
}

TensorView Model::get_tensor(std::string_view name) const { return get_tensor(at(name)); }

TensorView Model::get_tensor(const ModelTensor& tensor, const Interrupt& interrupt) const {
  return file(tensor.file).get_tensor(*tensor.info, interrupt);
}

TensorView Model::get_slice(std::string_view name, Indices indices) const {
  return get_slice(at(name), indices);
}

TensorView Model::get_slice(const ModelTensor& tensor, Indices indices,
                            const Interrupt& interrupt) const {
  return file(tensor.file).get_slice(*tensor.info, indices, interrupt);
}

void Model::read(std::span<const ModelRead> reads, const Interrupt& interrupt) const {
  std::vector<const ModelRead*> sorted;
  sorted.reserve(reads.size());
  for (const ModelRead& each : reads) sorted.push_back(&each);
  const auto file_of = [](const ModelRead* read) { return read->tensor.file; };
  std::ranges::stable_sort(sorted, {}, file_of);
  std::vector<TensorRead> together;
  for (std::size_t i = 0; i < sorted.size();) {
    const std::size_t number = file_of(sorted[i]);
    const SafeOpen& from = file(number);
    together.clear();
    for (; i < sorted.size() && file_of(sorted[i]) == number; ++i) {
      together.push_back({sorted[i]->tensor.info, sorted[i]->to, sorted[i]->runs});
    }
    from.read(together, interrupt);
  }
}

std::vector<std::shared_ptr<const ByteSource>> Model::sources() const {
  open_all();
  std::vector<std::shared_ptr<const ByteSource>> sources;
  sources.reserve(file_count());
  for (std::size_t i = 0; i < file_count(); ++i) sources.push_back(file(i).source());
  return sources;
}

LoadTensor Model::to_load(const ModelTensor& tensor, std::uint64_t to) const& {
  return {.name = tensor.info->name,
          .source = static_cast<std::uint32_t>(tensor.file),
          .offset = file(tensor.file).position(*tensor.info),
          .nbytes = tensor.info->nbytes(),
          .to = to};
}

Model open_model(const std::filesystem::path& path, const ModelOptions& options) {
  Model::Opener opener = options.opener;
  if (!opener) {
    opener = [open = options.open](const std::filesystem::path& file) {
      return SafeOpen(file, open);
    };
  }
  if (!options.opens_all) return {find_model_files(path, options.choice), std::move(opener)};
  const auto early = std::make_shared<EarlyOpens>(opener);
  Model model(find_model_files(path, options.choice, {}, early.get()),
              [opener = std::move(opener),
               while_opening = std::weak_ptr(early)](const std::filesystem::path& file) {
                const std::shared_ptr<EarlyOpens> files = while_opening.lock();
                return files ? files->open(file) : opener(file);
              });
  model.open_all();
  return model;
}

Model open_model(const ModelSource& source, const ModelChoice& choice) {
  return {find_model_files(source, choice), [source](const std::filesystem::path& file) {
            return SafeOpen(source.open_file(file), file);
          }};
}

}  // namespace safetensors
