#include "safetensors/apply_patch.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/display_path.hpp"
#include "base/text.hpp"
#include "check/sha256.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/error.hpp"
#include "safetensors/sums.hpp"
#include "safetensors/writer.hpp"

namespace safetensors {
namespace {

/// The digests of a model's tensors, by name.
using ModelDigests = std::map<std::string, Digest, std::less<>>;

/// A tensor of the file to be written.
struct Target {
  std::string_view name;
  Dtype dtype;
  std::vector<std::uint64_t> shape;
};

/// What of a model becomes what of the file.
class PatchApplication {
 public:
  PatchApplication(const PatchFile& patch, const Model& base, const ApplyPatchOptions& options)
      : patch_(patch),
        base_(base),
        options_(options),
        checks_{.digests = options.verify != PatchVerify::kBlocks,
                .sha256 = options.sha256,
                .interrupt = options.interrupt} {
    if (base.file_count() != 1) {
      fail(ErrorCode::kInvalidArgument,
           "the model has " + counted(base.file_count(), "file") + ": apply_patch takes one file",
           {.path = base.found().folder});
    }
    read_base();
    read_patch();
  }

  [[nodiscard]] LayoutPlan plan() const {
    std::vector<TensorSpec> specs;
    specs.reserve(targets_.size());
    for (const Target& each : targets_) specs.push_back({each.name, each.shape, each.dtype});
    const std::optional<Metadata> metadata = metadata_of_target();
    return plan_file(specs, metadata ? &*metadata : nullptr);
  }

  void write(FileWriter& writer) {
    write_unchanged(writer);
    for (const ModelTensor& tensor : tensors_) {
      if (patch_.contains(tensor.info->name)) write_changed(writer, tensor.info->name, &tensor);
    }
    for (std::size_t i = 0; i < patch_.size(); ++i) {
      if (!base_.contains(patch_.name(i))) write_changed(writer, patch_.name(i), nullptr);
    }
    if (options_.verify == PatchVerify::kWhole) check_models();
  }

 private:
  /// Finds the tensors of the base, in the order of their bytes.
  void read_base() {
    tensors_.reserve(base_.size());
    for (std::size_t i = 0; i < base_.size(); ++i) tensors_.push_back(base_.tensor(i));
    std::ranges::stable_sort(tensors_, {},
                             [](const ModelTensor& each) { return each.info->begin; });
    for (const ModelTensor& tensor : tensors_) {
      if (!patch_.contains(tensor.info->name)) add_target(*tensor.info);
    }
  }

  /// Checks all of the patch, before anything is written.
  void read_patch() {
    for (std::size_t i = 0; i < patch_.size(); ++i) {
      const PatchChange change = patch_.change(patch_.name(i), options_.interrupt);
      if (const auto& target = change.record().target()) {
        after_.emplace(patch_.name(i), *target);
      }
      const std::optional<ModelTensor> old = base_.find(patch_.name(i));
      if (change.kind() == PatchKind::kBlocks && old) add_target(*old->info);
      if (change.kind() == PatchKind::kBlocks && !old) (void)change.check_absent();  // throws
      if (const auto& dtype = change.dtype(); dtype && change.kind() == PatchKind::kWhole) {
        targets_.push_back(
            {patch_.name(i), *dtype, {change.shape().begin(), change.shape().end()}});
      }
    }
    for (std::size_t i = 0; i < targets_.size(); ++i) numbers_.emplace(targets_[i].name, i);
  }

  void add_target(const TensorInfo& info) {
    targets_.push_back({info.name, info.dtype, {info.shape.begin(), info.shape.end()}});
  }

  /// A file that an index leads to keeps its own metadata.
  [[nodiscard]] std::optional<Metadata> metadata_of_target() const {
    if (base_.found().index.empty() && patch_.metadata()) return patch_.metadata();
    const Header& header = base_.file(0).header();
    if (!header.has_metadata()) return std::nullopt;
    Metadata metadata;
    for (const auto& [key, value] : header.metadata()) metadata.emplace(key, value);
    return metadata;
  }

  void write_unchanged(FileWriter& writer) {
    std::vector<TensorCopy> copies;
    for (const ModelTensor& tensor : tensors_) {
      const TensorInfo& info = *tensor.info;
      if (patch_.contains(info.name)) continue;
      const std::size_t number = numbers_.at(info.name);
      if (options_.verify != PatchVerify::kWhole) {
        copies.push_back({number, base_.file(0).position(info)});
        continue;
      }
      const Buffer bytes = read(tensor);
      before_.emplace(info.name, digest_of(info, bytes.bytes()));
      writer.write(number, bytes.bytes());
    }
    if (!copies.empty()) writer.copy(*base_.file(0).source(), copies);
  }

  void write_changed(FileWriter& writer, std::string_view name, const ModelTensor* old) {
    const PatchChange change = patch_.change(name, options_.interrupt);
    const Buffer bytes = old == nullptr ? Buffer() : read(*old);
    check_order(change, old == nullptr ? change.check_absent()
                                       : change.check(data_of(*old->info, bytes.bytes()), checks_));
    if (const auto& digest = change.record().base()) before_.emplace(name, *digest);
    if (change.kind() == PatchKind::kRemoved) return;
    const std::size_t number = numbers_.find(name)->second;
    std::span<const std::byte> made = change.values();
    if (change.kind() == PatchKind::kBlocks) {
      change.apply(bytes.bytes(), checks_);
      made = bytes.bytes();
    }
    if (checks_.digests) {
      const Target& target = targets_[number];
      change.check_target({target.name, target.shape, made, target.dtype}, checks_);
    }
    writer.write(number, made);
  }

  /// Notices that the patch has been applied already, or to a part of the tensors.
  void check_order(const PatchChange& change, PatchState state) {
    const std::string prefix = display_path(patch_.path()) + ": ";
    if (state == PatchState::kBase) {
      if (!first_) first_ = change.name();
      return;
    }
    if (!first_) {
      fail(ErrorCode::kPatchApplied, prefix + "the model has this patch already",
           {.path = patch_.path()});
    }
    fail(ErrorCode::kWrongBase,
         prefix + "tensor `" + clipped(*first_) + "`: it is as before the patch, but tensor `" +
             clipped(change.name()) + "` as after it: the model is a mixture",
         {.path = patch_.path(), .subject = *first_});
  }

  /// Compares the digests of the models before and after with the patch's.
  void check_models() {
    const std::string prefix = display_path(patch_.path()) + ": the model ";
    if (const Digest found = whole_of(before_); found != patch_.base()) {
      fail(ErrorCode::kWrongBase,
           prefix + "is " + found.text() + " instead of the base " + patch_.base().text() +
               ": tensors that the patch does not change have other values, are missing, or are "
               "too many",
           {.path = patch_.path()});
    }
    for (const auto& [name, digest] : before_) {
      if (!patch_.contains(name)) after_.emplace(name, digest);
    }
    if (const Digest found = whole_of(after_); found != patch_.target()) {
      fail(ErrorCode::kInvalidPatch,
           prefix + "becomes " + found.text() + " instead of the target " + patch_.target().text(),
           {.path = patch_.path()});
    }
  }

  [[nodiscard]] Digest whole_of(const ModelDigests& digests) const {
    const bool is_sha256 = patch_.algorithm() == DigestAlgorithm::kSha256;
    Sums sums;
    (void)sums.add_file({.path = "model", .nbytes = 0, .header = patch_.base()});
    for (const auto& [name, digest] : digests) {
      TensorSums tensor{.name = name, .file = 0};
      (is_sha256 ? tensor.sha256 : tensor.xxh3_128) = digest;
      sums.add_tensor(tensor);
    }
    if (!is_sha256) return sums.whole_xxh3();
    return compute_sha256(options_.sha256, sums.whole_text(DigestAlgorithm::kSha256));
  }

  [[nodiscard]] Buffer read(const ModelTensor& tensor) const {
    Buffer bytes(static_cast<std::size_t>(tensor.info->nbytes()));
    base_.file(0).read(*tensor.info, bytes.bytes(), options_.interrupt);
    return bytes;
  }

  [[nodiscard]] Digest digest_of(const TensorInfo& info, std::span<const std::byte> bytes) const {
    return tensor_digest(patch_.algorithm(), info.dtype, info.shape, bytes, options_.sha256,
                         options_.interrupt);
  }

  static TensorData data_of(const TensorInfo& info, std::span<const std::byte> bytes) {
    return {info.name, info.shape, bytes, info.dtype};
  }

  const PatchFile& patch_;
  const Model& base_;
  const ApplyPatchOptions& options_;
  PatchChecks checks_;
  std::vector<ModelTensor> tensors_;
  std::vector<Target> targets_;
  std::map<std::string_view, std::size_t> numbers_;  // in targets_, by name
  ModelDigests before_;                              // of the tensors that were read
  ModelDigests after_;
  std::optional<std::string> first_;  // the first tensor that changes
};

}  // namespace

void apply_patch(const PatchFile& patch, const Model& base, const std::filesystem::path& path,
                 const ApplyPatchOptions& options) {
  PatchApplication application(patch, base, options);
  const auto sums = detail::sums_of_save(
      path, {.fsync = options.fsync, .sums = options.sums, .interrupt = options.interrupt});
  FileWriter writer(
      make_file_sink(path, {}, options.interrupt, sums->before_rename(path)), application.plan(),
      {.fsync = options.fsync, .interrupt = options.interrupt, .progress = options.progress});
  application.write(writer);
  writer.commit();
  sums->commit(options.fsync);
}

}  // namespace safetensors
