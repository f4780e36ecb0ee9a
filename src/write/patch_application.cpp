#include "write/patch_application.hpp"

#include <utility>

#include "base/checked.hpp"
#include "base/display_path.hpp"
#include "base/text.hpp"
#include "check/sha256.hpp"
#include "safetensors/detail/whole_text.hpp"
#include "safetensors/error.hpp"

namespace safetensors {
namespace {

TensorData data_of(const TensorInfo& info, std::span<const std::byte> bytes) {
  return {info.name, info.shape, bytes, info.dtype};
}

}  // namespace

PatchApplication::PatchApplication(const PatchFile& patch, const Model& base,
                                   const ApplyPatchOptions& options)
    : patch_(patch),
      base_(base),
      options_(options),
      checks_{.digests = options.verify != PatchVerify::kBlocks,
              .sha256 = options.sha256,
              .interrupt = options.interrupt},
      files_(base.file_count()) {
  read_base();
  read_patch();
}

LayoutPlan PatchApplication::plan(std::size_t file) const {
  std::vector<TensorSpec> specs;
  specs.reserve(files_[file].targets.size());
  for (const Target& each : files_[file].targets) {
    specs.push_back({each.name, each.shape, each.dtype});
  }
  const std::optional<Metadata> metadata = metadata_of(file);
  return plan_file(specs, metadata ? &*metadata : nullptr);
}

std::vector<std::string_view> PatchApplication::names(std::size_t file) const {
  const File& its = files_[file];
  std::vector<std::string_view> names;
  for (const ModelTensor& tensor : its.tensors) {
    if (its.numbers.contains(tensor.info->name)) names.push_back(tensor.info->name);
  }
  for (const Target& each : its.targets) {
    if (!base_.contains(each.name)) names.push_back(each.name);
  }
  return names;
}

void PatchApplication::write(std::size_t file, FileWriter& writer, detail::WriteSums& sums) {
  const File& its = files_[file];
  for (const Target& each : its.targets) sums.add(each.name, each.dtype, each.shape);
  write_unchanged(file, writer, sums);
  for (const ModelTensor& tensor : its.tensors) {
    if (!patch_.contains(tensor.info->name)) continue;
    write_changed(its, tensor.info->name, &tensor, writer, sums);
  }
  if (file + 1 != files_.size()) return;
  for (std::size_t i = 0; i < patch_.size(); ++i) {
    if (base_.contains(patch_.name(i))) continue;
    write_changed(its, patch_.name(i), nullptr, writer, sums);
  }
}

void PatchApplication::read_base() {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    File& file = files_[i];
    for (const TensorInfo& info : base_.file(i).header().tensors()) {
      const std::optional<ModelTensor> tensor = base_.find(info.name);
      if (!tensor || tensor->file != i) continue;
      file.tensors.push_back(*tensor);
      if (!patch_.contains(info.name)) add_target(file, info);
    }
  }
}

void PatchApplication::read_patch() {
  for (std::size_t i = 0; i < patch_.size(); ++i) {
    const PatchChange change = patch_.change(patch_.name(i), options_.interrupt);
    if (const auto& target = change.record().target()) after_.emplace(patch_.name(i), *target);
    const std::optional<ModelTensor> old = base_.find(patch_.name(i));
    File& file = old ? files_[old->file] : files_.back();
    if (change.kind() == PatchKind::kBlocks && old) add_target(file, *old->info);
    if (change.kind() == PatchKind::kBlocks && !old) (void)change.check_absent();  // throws
    if (const auto& dtype = change.dtype(); dtype && change.kind() == PatchKind::kWhole) {
      file.targets.push_back(
          {patch_.name(i), *dtype, {change.shape().begin(), change.shape().end()}});
    }
  }
  for (File& file : files_) {
    for (std::size_t i = 0; i < file.targets.size(); ++i) {
      file.numbers.emplace(file.targets[i].name, i);
    }
  }
}

void PatchApplication::add_target(File& file, const TensorInfo& info) {
  file.targets.push_back({info.name, info.dtype, {info.shape.begin(), info.shape.end()}});
}

std::optional<Metadata> PatchApplication::metadata_of(std::size_t file) const {
  const bool is_alone = files_.size() == 1 && base_.found().index.empty();
  if (is_alone && patch_.metadata()) return patch_.metadata();
  const Header& header = base_.file(file).header();
  if (!header.has_metadata()) return std::nullopt;
  Metadata metadata;
  for (const auto& [key, value] : header.metadata()) metadata.emplace(key, value);
  return metadata;
}

void PatchApplication::put(FileWriter& writer, detail::WriteSums& sums, std::size_t number,
                           std::span<const std::byte> bytes) {
  const detail::WriteSums::Part part{number, 0, bytes};
  sums.write_beside({&part, 1}, [&] { writer.write(number, bytes); });
}

void PatchApplication::write_unchanged(std::size_t file, FileWriter& writer,
                                       detail::WriteSums& sums) {
  const File& its = files_[file];
  std::vector<TensorCopy> copies;
  for (const ModelTensor& tensor : its.tensors) {
    const TensorInfo& info = *tensor.info;
    if (patch_.contains(info.name)) continue;
    const std::size_t number = its.numbers.at(info.name);
    if (options_.verify != PatchVerify::kWhole) {
      copies.push_back({number, base_.file(file).position(info)});
      continue;
    }
    const Buffer bytes = read(tensor);
    before_.emplace(info.name, digest_of(info, bytes.bytes()));
    put(writer, sums, number, bytes.bytes());
  }
  if (!copies.empty()) writer.copy(*base_.file(file).source(), copies);
}

void PatchApplication::write_changed(const File& file, std::string_view name,
                                     const ModelTensor* old, FileWriter& writer,
                                     detail::WriteSums& sums) {
  const PatchChange change = patch_.change(name, options_.interrupt);
  const Buffer bytes = old == nullptr ? Buffer() : read(*old);
  check_order(change, old == nullptr ? change.check_absent()
                                     : change.check(data_of(*old->info, bytes.bytes()), checks_));
  if (const auto& digest = change.record().base()) before_.emplace(name, *digest);
  if (change.kind() == PatchKind::kRemoved) return;
  const std::size_t number = file.numbers.find(name)->second;
  std::span<const std::byte> made = change.values();
  if (change.kind() == PatchKind::kBlocks) {
    change.apply(bytes.bytes(), checks_);
    made = bytes.bytes();
  }
  if (checks_.digests) {
    const Target& target = file.targets[number];
    change.check_target({target.name, target.shape, made, target.dtype}, checks_);
  }
  put(writer, sums, number, made);
}

void PatchApplication::check_order(const PatchChange& change, PatchState state) {
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

void PatchApplication::finish() {
  if (options_.verify != PatchVerify::kWhole) return;
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

Digest PatchApplication::whole_of(const ModelDigests& digests) const {
  const bool is_sha256 = patch_.algorithm() == DigestAlgorithm::kSha256;
  Xxh3Hasher xxh3;
  std::string whole;
  detail::WholeText text([&](std::string_view piece) {
    if (is_sha256) whole += piece;
    if (!is_sha256) xxh3.update(std::as_bytes(std::span(piece)));
  });
  for (const auto& [name, digest] : digests) text.add(name, digest);
  text.finish();
  return is_sha256 ? compute_sha256(options_.sha256, whole) : xxh3.digest();
}

Buffer PatchApplication::read(const ModelTensor& tensor) const {
  Buffer bytes(memory_size(tensor.info->nbytes()));
  base_.file(tensor.file).read(*tensor.info, bytes.bytes(), options_.interrupt);
  return bytes;
}

Digest PatchApplication::digest_of(const TensorInfo& info, std::span<const std::byte> bytes) const {
  return tensor_digest(patch_.algorithm(), info.dtype, info.shape, bytes, options_.sha256,
                       options_.interrupt);
}

}  // namespace safetensors
