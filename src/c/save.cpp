// Writing files.
#include "safetensors/save.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/items.hpp"
#include "c/options.hpp"
#include "c/path.hpp"
#include "safetensors/model_writer.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Metadata;
using safetensors::TensorData;
using safetensors::c::check_pointer;
using safetensors::c::guarded;

namespace {

constexpr std::uint32_t kSaveFlags = SAFETENSORS_FSYNC | SAFETENSORS_SUMS;

/// What is to be written, in the library's types.
class Content {
 public:
  /// options: of any function that saves.
  template <typename Options>
  Content(const safetensors_tensor* tensors, std::size_t count, const Options& options)
      : metadata_(safetensors::c::metadata_of(options.metadata, options.metadata_count)),
        tensors_(safetensors::c::tensors_of(tensors, count)) {}
  [[nodiscard]] std::span<const TensorData> tensors() const noexcept { return tensors_; }
  [[nodiscard]] const Metadata* metadata() const noexcept {
    return metadata_ ? &*metadata_ : nullptr;
  }

 private:
  std::optional<Metadata> metadata_;
  std::vector<TensorData> tensors_;
};

}  // namespace

std::int32_t safetensors_save(const char* path, std::size_t path_size,
                              const safetensors_tensor* tensors, std::size_t count,
                              const safetensors_save_options* options, safetensors_error* error) {
  return guarded(error, [&] {
    const auto given = safetensors::c::save_options_of(options, kSaveFlags);
    const safetensors::c::Watch watch(given.watch);
    const Content content(tensors, count, given);
    safetensors::save_file(content.tensors(), safetensors::c::path_of(path, path_size),
                           content.metadata(),
                           {.fsync = (given.flags & SAFETENSORS_FSYNC) != 0,
                            .sums = (given.flags & SAFETENSORS_SUMS) != 0,
                            .interrupt = watch.interrupt(),
                            .progress = watch.progress()});
  });
}

std::int32_t safetensors_save_model(const char* folder, std::size_t folder_size,
                                    const safetensors_tensor* tensors, std::size_t count,
                                    const safetensors_save_model_options* options,
                                    safetensors_error* error) {
  return guarded(error, [&] {
    const auto given = safetensors::c::options_of(options, "options");
    safetensors::c::check_flags(given.flags, kSaveFlags);
    safetensors::c::check_reserved(given.reserved);
    const safetensors::c::Watch watch(given.watch);
    const Content content(tensors, count, given);
    const std::filesystem::path target = safetensors::c::path_of(folder, folder_size);
#if defined(_WIN32)
    fail(ErrorCode::kInvalidArgument, "models of several files are not saved on Windows",
         {.path = target});
#else
    safetensors::SaveModelOptions of_model{.fsync = (given.flags & SAFETENSORS_FSYNC) != 0,
                                           .sums = (given.flags & SAFETENSORS_SUMS) != 0,
                                           .interrupt = watch.interrupt(),
                                           .progress = watch.progress()};
    if (given.max_shard_nbytes != 0) of_model.max_shard_nbytes = given.max_shard_nbytes;
    const std::string_view name = safetensors::c::text_of(given.name, given.name_size, "name");
    if (!name.empty()) of_model.name = name;
    safetensors::save_model(target, content.tensors(), content.metadata(), of_model);
#endif
  });
}

std::int32_t safetensors_serialize(const safetensors_tensor* tensors, std::size_t count,
                                   const safetensors_save_options* options, void* to,
                                   std::size_t room, std::uint64_t* nbytes,
                                   safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(nbytes, 1, "nbytes");
    const auto given = safetensors::c::save_options_of(options, 0);
    safetensors::c::refuse_watch(given);
    const Content content(tensors, count, given);
    const safetensors::LayoutPlan plan =
        safetensors::plan_layout(content.tensors(), content.metadata());
    *nbytes = plan.total_nbytes;
    if (to == nullptr) return;
    if (room < plan.total_nbytes) {
      fail(ErrorCode::kInvalidArgument, "the file takes " +
                                            safetensors::counted(plan.total_nbytes, "byte") +
                                            ", the destination has " + safetensors::grouped(room));
    }
    const auto size = safetensors::memory_size(plan.total_nbytes);
    safetensors::serialize_to(plan, content.tensors(), {static_cast<std::byte*>(to), size});
  });
}
