// Patches.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/made_once.hpp"
#include "base/text.hpp"
#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/path.hpp"
#include "c/sums.hpp"
#include "safetensors/apply_patch.hpp"
#include "safetensors/model.hpp"
#include "safetensors/patch_file.hpp"

using safetensors::Digest;
using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::MadeOnce;
using safetensors::PatchChange;
using safetensors::PatchFile;
using safetensors::PatchVerify;
using safetensors::c::check_pointer;
using safetensors::c::guarded;

static_assert(SAFETENSORS_PATCH_REMOVED == static_cast<int>(safetensors::PatchKind::kRemoved));
static_assert(SAFETENSORS_PATCH_WHOLE == static_cast<int>(safetensors::PatchKind::kWhole));
static_assert(SAFETENSORS_PATCH_BLOCKS == static_cast<int>(safetensors::PatchKind::kBlocks));

/// An open patch, and the shapes that it has given out.
struct safetensors_patch {
 public:
  using Shape = std::vector<std::uint64_t>;
  explicit safetensors_patch(PatchFile opened) : file(std::move(opened)), shapes_(file.size()) {}

  /// Returns a copy of the shape of a tensor that lives as long as the patch.
  [[nodiscard]] const Shape& kept(std::size_t index, std::span<const std::uint64_t> shape) const {
    return shapes_[index].get([&] { return Shape(shape.begin(), shape.end()); });
  }

  const PatchFile file;

 private:
  std::vector<MadeOnce<Shape>> shapes_;
};

namespace {

PatchVerify verify_of(std::int32_t number, PatchVerify unset) {
  switch (number) {
    case SAFETENSORS_VERIFY_DEFAULT:
      return unset;
    case SAFETENSORS_VERIFY_BLOCKS:
      return PatchVerify::kBlocks;
    case SAFETENSORS_VERIFY_FULL:
      return PatchVerify::kFull;
    case SAFETENSORS_VERIFY_WHOLE:
      return PatchVerify::kWhole;
    default:
      fail(ErrorCode::kInvalidArgument, "no verification has number " + std::to_string(number));
  }
}

void put_optional(const std::optional<Digest>& digest, char* to) {
  if (digest) return safetensors::c::put_digest(*digest, to);
  *to = '\0';
}

}  // namespace

std::int32_t safetensors_patch_open(const safetensors_file* file, safetensors_patch** patch,
                                    safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(patch, 1, "patch");
    if (const std::uint32_t count = file->file_count(); count != 1) {
      const safetensors::Model model = file->as_model();
      fail(ErrorCode::kInvalidArgument,
           "a patch is one file, and this is a model of " + safetensors::counted(count, "file"),
           {.path = model.found().folder});
    }
    *patch = new safetensors_patch(PatchFile(file->file(0)));
  });
}

// NOLINTNEXTLINE(misc-const-correctness): frees it
void safetensors_patch_close(safetensors_patch* patch) { delete patch; }

std::size_t safetensors_patch_count(const safetensors_patch* patch) {
  return patch == nullptr ? 0 : patch->file.size();
}

std::int32_t safetensors_patch_at(const safetensors_patch* patch, std::size_t index,
                                  safetensors_patch_entry* entry, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(patch, 1, "patch");
    check_pointer(entry, 1, "entry");
    safetensors::c::check_index(index, patch->file.size());
    const std::string_view name = patch->file.name(index);
    const PatchChange change = patch->file.change(name);
    const std::vector<std::uint64_t>& shape = patch->kept(index, change.shape());
    *entry = {.name = name.data(),
              .name_size = name.size(),
              .shape = shape.data(),
              .rank = shape.size(),
              .units = change.units(),
              .changed = change.changed(),
              .nbytes = change.nbytes(),
              .kind = static_cast<std::int32_t>(change.kind()),
              .dtype = change.dtype() ? static_cast<std::int32_t>(*change.dtype()) : -1,
              .base = {},
              .target = {}};
    put_optional(change.record().base(), entry->base);
    put_optional(change.record().target(), entry->target);
  });
}

std::int32_t safetensors_patch_apply(const safetensors_patch* patch,
                                     const safetensors_tensor* tensor, void* bytes,
                                     const safetensors_patch_options* options,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(patch, 1, "patch");
    const auto given = safetensors::c::options_of(options, "options");
    safetensors::c::check_flags(given.flags, 0);
    const PatchVerify verify = verify_of(given.verify, PatchVerify::kBlocks);
    if (verify == PatchVerify::kWhole) {
      fail(ErrorCode::kInvalidArgument, "one tensor is no whole model to be verified");
    }
    const safetensors::TensorInfo info = safetensors::c::info_of(tensor);
    check_pointer(bytes, tensor->nbytes, "bytes");
    patch->file.apply(info.name, info.dtype, info.shape,
                      {static_cast<std::byte*>(bytes), safetensors::memory_size(tensor->nbytes)},
                      {.digests = verify == PatchVerify::kFull,
                       .interrupt = safetensors::c::Watch(given.watch).interrupt()});
  });
}

std::int32_t safetensors_patch_apply_file(const safetensors_patch* patch,
                                          const safetensors_file* base, const char* path,
                                          std::size_t path_size,
                                          const safetensors_patch_options* options,
                                          safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(patch, 1, "patch");
    check_pointer(base, 1, "base");
    const auto given = safetensors::c::options_of(options, "options");
    safetensors::c::check_flags(given.flags, SAFETENSORS_FSYNC | SAFETENSORS_SUMS);
    const safetensors::c::Watch watch(given.watch);
    safetensors::apply_patch(patch->file, base->as_model(),
                             safetensors::c::path_of(path, path_size),
                             {.verify = verify_of(given.verify, PatchVerify::kFull),
                              .fsync = (given.flags & SAFETENSORS_FSYNC) != 0,
                              .sums = (given.flags & SAFETENSORS_SUMS) != 0,
                              .interrupt = watch.interrupt(),
                              .progress = watch.progress()});
  });
}
