#include "safetensors/model_writer.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/text.hpp"
#include "io/os_error.hpp"
#include "io/posix/fd.hpp"
#include "io/posix/own_file.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/detail/model_parts.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/error.hpp"
#include "write/distinct_names.hpp"
#include "write/model_switch.hpp"
#include "write/old_files.hpp"
#include "write/recovery.hpp"

namespace safetensors {
namespace {

namespace fs = std::filesystem;
using detail::Folder;
using detail::OwnName;
using detail::OwnPlace;

/// A folder that is made if it does not exist, and removed with what is undone.
class ModelFolder {
 public:
  explicit ModelFolder(const fs::path& typed) : path_(absolute_path(typed)) {
    std::error_code error;
    if (fs::symlink_status(path_, error).type() != fs::file_type::not_found) return;
    detail::check_new_folder(path_);
    is_made_ = fs::create_directory(path_, error);  // false if another process was faster
    if (error) io::fail_os(error.value(), path_);
  }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;
  ~ModelFolder() {
    if (is_of_this_process()) remove();
  }

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }
  [[nodiscard]] bool is_made() const noexcept { return is_made_; }
  [[nodiscard]] bool is_of_this_process() const noexcept { return process_.is_this(); }
  void keep() noexcept { is_made_ = false; }
  void remove() noexcept {
    if (is_made_) io::remove_empty_folder(path_);
    is_made_ = false;
  }

 private:
  fs::path path_;
  bool is_made_ = false;
  io::OwnProcess process_;
};

}  // namespace

class ModelWriter::State {
 public:
  State(const fs::path& folder, ModelWriterOptions options)
      : options_(checked(std::move(options))),
        made_(folder),
        folder_(Folder::open(made_.path())),
        rights_(rights_after_recovery()),
        switch_(folder_, options_.name, options_.interrupt) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    try {
      abort();
      // NOLINTNEXTLINE(bugprone-empty-catch): what is left is removed by a recovery
    } catch (const std::exception&) {
    }
    if (switch_.is_committed()) made_.keep();
  }

  [[nodiscard]] const OwnPlace& parts() const { return switch_.parts(); }
  [[nodiscard]] bool is_committed() const noexcept { return switch_.is_committed(); }
  [[nodiscard]] OwnPlace part(const std::string& name) const {
    return {switch_.parts().folder, OwnName(name)};
  }
  [[nodiscard]] const OwnPlace* rights() const noexcept { return rights_ ? &*rights_ : nullptr; }

  std::unique_ptr<ByteSink> make_shard(
      std::size_t number, const std::function<void(const fs::path&)>& before_commit) const {
    check_open();
    check_count(number);
    return detail::make_part_sink(part(shard_part(number)), rights(), before_commit);
  }

  void add_companion(std::string_view name, std::span<const std::byte> bytes) {
    check_open();
    if (!detail::is_companion(name)) {
      fail(ErrorCode::kInvalidArgument,
           "`" + clipped(name) + "` is no name of a configuration, a tokenizer or a licence",
           {.path = made_.path()});
    }
    const OwnPlace old{folder_, OwnName(name)};
    write_part(companion_part(name), bytes, &old);
    companions_.emplace_back(name);
  }

  std::vector<fs::path> commit(std::span<const std::vector<std::string_view>> shards,
                               std::uint64_t total_nbytes, std::string_view sums) {
    check_open();
    check_count(shards.size());
    refuse_bad_names(shards);
    switch_.check_shards(shards.size());
    if (shards.size() > 1) {
      const OwnPlace old{folder_, OwnName(index_file_name(options_.name))};
      write_part(std::string(kIndexPart), index_text(options_.name, shards, total_nbytes),
                 folder_.status(old.name) ? &old : rights());
    }
    if (!sums.empty()) {
      // They tell about the tensors: who may not read the model may not read them.
      const OwnPlace first = part(shard_part(1));
      write_part(std::string(kSumsPart), sums, &first);
    }
    switch_.commit(shards.size(), options_.fsync, companions_, options_.interrupt);
    if (options_.fsync && made_.is_made()) Folder::open(made_.path().parent_path()).flush();
    made_.keep();
    std::vector<fs::path> paths;
    for (std::size_t i = 1; i <= shards.size(); ++i) {
      paths.push_back(made_.path() / shard_file_name(options_.name, i, shards.size()));
    }
    return paths;
  }

  void abort() {
    if (made_.is_of_this_process() && switch_.abort()) made_.remove();
  }

 private:
  static ModelWriterOptions checked(ModelWriterOptions options) {
    detail::check_model_name(options.name);
    return options;
  }

  /// Recovers the model, and returns its file whose rights the new files get: the index if there is
  /// no other.
  std::optional<OwnPlace> rights_after_recovery() const {
    recover_model(folder_, options_.name);
    const FileIdentities old = old_files(folder_, options_.name);
    if (old.empty()) return std::nullopt;
    const std::string index = index_file_name(options_.name);
    const auto file =
        std::ranges::find_if(old, [&](const auto& each) { return each.first != index; });
    return OwnPlace{folder_, OwnName(file == old.end() ? index : file->first)};
  }

  void check_open() const {
    if (!switch_.is_open()) {
      fail(ErrorCode::kWriterClosed, "the model was committed or aborted before",
           {.path = made_.path()});
    }
  }

  void check_count(std::size_t files) const {
    if (files >= 1 && files <= kMaxShards) return;
    fail(ErrorCode::kInvalidArgument,
         "a model has 1 to " + std::to_string(kMaxShards) + " files, and not " +
             std::to_string(files),
         {.path = made_.path()});
  }

  void write_part(const std::string& name, std::string_view text, const OwnPlace* like) const {
    write_part(name, std::as_bytes(std::span(text)), like);
  }
  void write_part(const std::string& name, std::span<const std::byte> bytes,
                  const OwnPlace* like) const {
    const auto sink = detail::make_part_sink(part(name), like, {});
    detail::write_all(*sink, bytes, false);
  }

  ModelWriterOptions options_;
  ModelFolder made_;
  Folder folder_;
  std::optional<OwnPlace> rights_;  // a file of the old model
  ModelSwitch switch_;
  std::vector<std::string> companions_;
};

ModelWriter::ModelWriter(const fs::path& folder, ModelWriterOptions options)
    : state_(std::make_unique<State>(folder, std::move(options))) {}
ModelWriter::ModelWriter(ModelWriter&&) noexcept = default;
ModelWriter& ModelWriter::operator=(ModelWriter&&) noexcept = default;
ModelWriter::~ModelWriter() = default;

std::unique_ptr<ByteSink> ModelWriter::make_shard(
    std::size_t number, const std::function<void(const fs::path&)>& before_commit) {
  return state_->make_shard(number, before_commit);
}

void ModelWriter::add_companion(std::string_view name, std::span<const std::byte> bytes) {
  state_->add_companion(name, bytes);
}

std::vector<fs::path> ModelWriter::commit(std::span<const std::vector<std::string_view>> shards,
                                          std::uint64_t total_nbytes, std::string_view sums) {
  return state_->commit(shards, total_nbytes, sums);
}

bool ModelWriter::is_committed() const noexcept { return state_->is_committed(); }
void ModelWriter::abort() { state_->abort(); }

const OwnPlace& detail::ModelParts::folder(const ModelWriter& model) {
  return model.state_->parts();
}
OwnPlace detail::ModelParts::shard(const ModelWriter& model, std::size_t number) {
  return model.state_->part(shard_part(number));
}
std::optional<OwnPlace> detail::ModelParts::rights(const ModelWriter& model) {
  const OwnPlace* const like = model.state_->rights();
  return like == nullptr ? std::nullopt : std::optional(*like);
}

}  // namespace safetensors
