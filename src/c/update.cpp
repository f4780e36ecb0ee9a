// Changing files, and their recovery.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "c/guard.hpp"
#include "c/items.hpp"
#include "c/options.hpp"
#include "c/path.hpp"
#include "safetensors/model_writer.hpp"
#include "safetensors/update_file.hpp"

using safetensors::c::check_pointer;
using safetensors::c::guarded;

namespace {

constexpr std::uint32_t kUpdateFlags = SAFETENSORS_FSYNC | SAFETENSORS_SUMS |
                                       SAFETENSORS_UPDATE_ADD | SAFETENSORS_UPDATE_REMOVE_METADATA |
                                       SAFETENSORS_UPDATE_IN_PLACE | SAFETENSORS_UPDATE_SHARED;

#if !defined(_WIN32)
static_assert(SAFETENSORS_RECOVERY_CLEAN == static_cast<int>(safetensors::Recovery::kClean));
static_assert(SAFETENSORS_RECOVERY_ROLLED_BACK ==
              static_cast<int>(safetensors::Recovery::kRolledBack));
static_assert(SAFETENSORS_RECOVERY_ROLLED_FORWARD ==
              static_cast<int>(safetensors::Recovery::kRolledForward));
#endif

}  // namespace

std::int32_t safetensors_update_file(const char* path, std::size_t path_size,
                                     const safetensors_tensor* tensors, std::size_t count,
                                     const safetensors_update_options* options,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    const auto given = safetensors::c::options_of(options, "options");
    safetensors::c::check_flags(given.flags, kUpdateFlags);
    safetensors::c::check_reserved(given.reserved);
    const safetensors::c::Watch watch(given.watch);
    check_pointer(given.remove, given.remove_count, "remove");
    std::vector<std::string_view> removed;
    removed.reserve(given.remove_count);
    for (std::size_t i = 0; i < given.remove_count; ++i) {
      removed.push_back(
          safetensors::c::text_of(given.remove[i].name, given.remove[i].name_size, "name"));
    }
    const std::optional<safetensors::Metadata> metadata =
        safetensors::c::metadata_of(given.metadata, given.metadata_count);
    const auto has = [&](std::uint32_t flag) { return (given.flags & flag) != 0; };
    safetensors::update_file(safetensors::c::path_of(path, path_size),
                             safetensors::c::tensors_of(tensors, count),
                             {.in_place = has(SAFETENSORS_UPDATE_IN_PLACE),
                              .shared = has(SAFETENSORS_UPDATE_SHARED),
                              .add = has(SAFETENSORS_UPDATE_ADD),
                              .remove = removed,
                              .metadata = metadata ? &*metadata : nullptr,
                              .remove_metadata = has(SAFETENSORS_UPDATE_REMOVE_METADATA),
                              .fsync = has(SAFETENSORS_FSYNC),
                              .sums = has(SAFETENSORS_SUMS),
                              .interrupt = watch.interrupt(),
                              .progress = watch.progress()});
  });
}

std::int32_t safetensors_recover(const char* path, std::size_t path_size, std::int32_t* outcome,
                                 safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(outcome, 1, "outcome");
    const std::filesystem::path file = safetensors::c::path_of(path, path_size);
#if defined(_WIN32)
    safetensors::fail(safetensors::ErrorCode::kInvalidArgument,
                      "recovery is not supported on Windows", {.path = file});
#else
    *outcome = static_cast<std::int32_t>(safetensors::recover(file));
#endif
  });
}
