#include "safetensors/patch_change.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/text.hpp"
#include "patch/patch_error.hpp"
#include "patch/row.hpp"
#include "patch/shape.hpp"
#include "safetensors/detail/patch_entries.hpp"
#include "safetensors/error.hpp"

namespace safetensors {

namespace {

/// Bytes of a file, and what keeps them.
struct KeptBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

KeptBytes bytes_in(const SafeOpen& file, const TensorInfo& info, const Interrupt& interrupt) {
  const TensorView view = file.get_tensor(info, interrupt);
  return {view.owner(), view.bytes()};
}

/// Returns the entry of the record of a tensor. Throws: Error kTensorNotFound or kInvalidPatch.
const TensorInfo& find_record(const SafeOpen& file, std::string_view tensor) {
  const TensorInfo* const info = file.find(detail::record_entry(tensor));
  if (info == nullptr) {
    patch::fail_file(ErrorCode::kTensorNotFound, file.path(),
                     "the patch has no tensor `" + clipped(tensor) + "`", tensor);
  }
  if (info->dtype != Dtype::kU8 || info->shape.size() != 1) {
    patch::fail_tensor(
        ErrorCode::kInvalidPatch, file.path(), tensor,
        "its record is " + patch::described(info->dtype, info->shape) + ", not U8 [n]");
  }
  return *info;
}

}  // namespace

struct PatchChange::State {
  State(const SafeOpen& file, std::string_view tensor, DigestAlgorithm used,
        const Interrupt& interrupt)
      : State(file, find_record(file, tensor), file.find(detail::values_entry(tensor)), tensor,
              used, interrupt) {}

  /// Runs `work`, whose errors about the tensor get the name of the file.
  template <typename Work>
  auto named(const Work& work) const {
    return named(path, name, work);
  }
  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    patch::fail_tensor(code, path, name, what);
  }
  /// Throws Error kWrongBase unless a tensor has the dtype and the shape of the blocks.
  void check_spec(const TensorData& tensor) const;
  [[nodiscard]] Digest digest(const TensorData& tensor, const PatchChecks& checks) const {
    return tensor_digest(algorithm, tensor.dtype, {tensor.shape.data(), tensor.shape.size()},
                         tensor.bytes, checks.sha256, checks.interrupt);
  }
  /// Compares the units that change.
  [[nodiscard]] PatchState check_blocks(const TensorData& tensor, const PatchChecks& checks) const;

  std::filesystem::path path;
  std::string name;
  DigestAlgorithm algorithm;
  KeptBytes raw;  // the record
  KeptBytes values;
  PatchRecord record;
  bool is_sub_byte = false;  // blocks of a sub-byte type
  std::optional<Dtype> dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t units = 0;

 private:
  State(const SafeOpen& file, const TensorInfo& entry, const TensorInfo* value_entry,
        std::string_view tensor, DigestAlgorithm used, const Interrupt& interrupt);

  template <typename Work>
  static auto named(const std::filesystem::path& path, const std::string& name, const Work& work) {
    try {
      return work();
    } catch (const Error& error) {
      if (!error.path().empty()) throw;
      throw error.with_context(patch::prefix_of(path), path, name);
    }
  }
};

PatchChange::State::State(const SafeOpen& file, const TensorInfo& entry,
                          const TensorInfo* value_entry, std::string_view tensor,
                          DigestAlgorithm used, const Interrupt& interrupt)
    : path(file.path()),
      name(tensor),
      algorithm(used),
      raw(bytes_in(file, entry, interrupt)),
      values(value_entry == nullptr ? KeptBytes() : bytes_in(file, *value_entry, interrupt)),
      record(named(path, name, [&] {
        const Dtype of_values = value_entry == nullptr ? Dtype::kU8 : value_entry->dtype;
        return PatchRecord(raw.bytes, values.bytes, of_values, used, name, interrupt);
      })) {
  const PatchKind kind = record.kind();
  if ((value_entry == nullptr) != (kind == PatchKind::kRemoved)) {
    fail(ErrorCode::kInvalidPatch, "its record says " + std::string(safetensors::name(kind)) +
                                       ", and it has " + (value_entry == nullptr ? "no " : "") +
                                       "values");
  }
  if (kind == PatchKind::kRemoved) return;
  if (kind == PatchKind::kWhole) {
    dtype = value_entry->dtype;
    shape.assign(value_entry->shape.begin(), value_entry->shape.end());
    units = value_entry->nbytes() / patch::unit_of(*dtype);
    return;
  }
  if (value_entry->shape.size() != 1) {
    fail(ErrorCode::kInvalidPatch,
         "its values have the shape " + shown(value_entry->shape) + ", not [n]");
  }
  is_sub_byte = (std::to_integer<unsigned>(raw.bytes[patch::kFlagsAt]) & patch::kSubByte) != 0;
  if (!is_sub_byte) dtype = value_entry->dtype;
  shape.assign(record.shape().begin(), record.shape().end());
  units = record.units();
}

void PatchChange::State::check_spec(const TensorData& tensor) const {
  const bool is_same = is_sub_byte ? patch::is_sub_byte(tensor.dtype) : tensor.dtype == dtype;
  const std::span<const std::uint64_t> dims(tensor.shape.data(), tensor.shape.size());
  if (is_same && std::ranges::equal(dims, shape)) return;
  const std::string own = dtype ? patch::described(*dtype, shape)
                                : "a type below a byte " + shown<std::uint64_t>(shape);
  fail(ErrorCode::kWrongBase,
       "the patch is for " + own + ", but the model's is " + patch::described(tensor.dtype, dims));
}

PatchState PatchChange::State::check_blocks(const TensorData& tensor,
                                            const PatchChecks& checks) const {
  PatchRecord::Hash hash;
  if (algorithm == DigestAlgorithm::kXxh3_128 || checks.sha256) {
    hash = [&] { return digest(tensor, checks); };
  }
  return named([&] { return record.check(tensor.bytes, hash, checks.interrupt); });
}

PatchChange::PatchChange(const SafeOpen& patch, std::string_view tensor, DigestAlgorithm algorithm,
                         const Interrupt& interrupt)
    : state_(std::make_shared<const State>(patch, tensor, algorithm, interrupt)) {}

std::string_view PatchChange::name() const& noexcept { return state_->name; }
const std::filesystem::path& PatchChange::path() const& noexcept { return state_->path; }
const PatchRecord& PatchChange::record() const& noexcept { return state_->record; }
const std::optional<Dtype>& PatchChange::dtype() const& noexcept { return state_->dtype; }
std::span<const std::uint64_t> PatchChange::shape() const& noexcept { return state_->shape; }
std::span<const std::byte> PatchChange::values() const& noexcept { return state_->values.bytes; }
std::uint64_t PatchChange::units() const noexcept { return state_->units; }
std::uint64_t PatchChange::changed() const noexcept {
  return kind() == PatchKind::kWhole ? state_->units : record().changed();
}
std::uint64_t PatchChange::nbytes() const noexcept {
  return std::uint64_t{state_->raw.bytes.size()} + state_->values.bytes.size();
}

PatchState PatchChange::check(const TensorData& tensor, const PatchChecks& checks) const {
  const bool has_blocks = kind() == PatchKind::kBlocks;
  if (has_blocks) {
    state_->check_spec(tensor);
    if (!checks.digests) return state_->check_blocks(tensor, checks);
  }
  const Digest found = state_->digest(tensor, checks);
  if (found == record().base()) return PatchState::kBase;
  if (found == record().target()) return PatchState::kApplied;
  const std::optional<Digest>& base = record().base();
  if (!base) {
    state_->fail(ErrorCode::kWrongBase, "the base has no such tensor, but the model has");
  }
  std::string what = "it is not that of the base: ";
  if (has_blocks) {
    (void)state_->check_blocks(tensor, checks);  // names the block if it is one that changes
    what = "it differs from the base where the patch changes nothing: ";
  }
  state_->fail(ErrorCode::kWrongBase,
               what + base->text() + " expected, " + found.text() + " found");
}

PatchState PatchChange::check_absent() const {
  if (!record().base()) return PatchState::kBase;
  if (kind() == PatchKind::kRemoved) return PatchState::kApplied;
  state_->fail(ErrorCode::kWrongBase, "the model has no such tensor");
}

void PatchChange::apply(std::span<std::byte> tensor, const PatchChecks& checks) const {
  if (kind() == PatchKind::kBlocks) {
    PatchRecord::Hash hash;
    if (checks.sha256 && state_->dtype) {
      hash = [&] { return state_->digest({{}, state_->shape, tensor, *state_->dtype}, checks); };
    }
    return state_->named([&] { record().apply(tensor, hash, checks.interrupt); });
  }
  if (kind() == PatchKind::kRemoved) {
    state_->fail(ErrorCode::kInvalidArgument, "the patch removes it");
  }
  const std::span<const std::byte> values = state_->values.bytes;
  if (tensor.size() != values.size()) {
    state_->fail(ErrorCode::kInvalidArgument, "it has " + counted(values.size(), "byte") +
                                                  ", the destination has " +
                                                  grouped(tensor.size()));
  }
  if (!values.empty()) std::memcpy(tensor.data(), values.data(), values.size());
}

void PatchChange::check_target(const TensorData& result, const PatchChecks& checks) const {
  const Digest found = state_->digest(result, checks);
  if (found == record().target()) return;
  const std::optional<Digest>& target = record().target();
  state_->fail(ErrorCode::kInvalidPatch, "it gives " + found.text() + " instead of the target " +
                                             (target ? target->text() : "without this tensor"));
}

}  // namespace safetensors
