// Writing files.
#include "safetensors/save.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/items.hpp"
#include "c/path.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Metadata;
using safetensors::TensorData;
using safetensors::TensorInfo;
using safetensors::c::check_pointer;
using safetensors::c::guarded;

namespace {

/// What is to be written, in the library's types.
class Content {
 public:
  Content(const safetensors_tensor* tensors, std::size_t count, const safetensors_item* metadata,
          std::size_t metadata_count)
      : metadata_(safetensors::c::metadata_of(metadata, metadata_count)) {
    check_pointer(tensors, count, "tensors");
    tensors_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const TensorInfo info = safetensors::c::info_of(&tensors[i]);
      check_pointer(tensors[i].data, tensors[i].nbytes, "data");
      tensors_.push_back({info.name,
                          info.shape,
                          {static_cast<const std::byte*>(tensors[i].data),
                           static_cast<std::size_t>(tensors[i].nbytes)},
                          info.dtype});
    }
  }
  [[nodiscard]] std::span<const TensorData> tensors() const noexcept { return tensors_; }
  [[nodiscard]] const Metadata* metadata() const noexcept {
    return metadata_ ? &*metadata_ : nullptr;
  }

 private:
  std::vector<TensorData> tensors_;
  std::optional<Metadata> metadata_;
};

}  // namespace

std::int32_t safetensors_save(const char* path, const safetensors_tensor* tensors,
                              std::size_t count, const safetensors_item* metadata,
                              std::size_t metadata_count, std::uint32_t flags,
                              safetensors_error* error) {
  return guarded(error, [&] {
    if ((flags & ~std::uint32_t{SAFETENSORS_FSYNC}) != 0) {
      fail(ErrorCode::kInvalidArgument, "unknown flags: " + std::to_string(flags));
    }
    const Content content(tensors, count, metadata, metadata_count);
    safetensors::SaveOptions options;
    options.fsync = (flags & SAFETENSORS_FSYNC) != 0;
    safetensors::save_file(content.tensors(), safetensors::c::path_of(path, "path"),
                           content.metadata(), options);
  });
}

std::int32_t safetensors_serialize(const safetensors_tensor* tensors, std::size_t count,
                                   const safetensors_item* metadata, std::size_t metadata_count,
                                   void* to, std::size_t room, std::uint64_t* nbytes,
                                   safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(nbytes, 1, "nbytes");
    const Content content(tensors, count, metadata, metadata_count);
    const safetensors::LayoutPlan plan =
        safetensors::plan_layout(content.tensors(), content.metadata());
    *nbytes = plan.total_nbytes;
    if (to == nullptr) return;
    if (room < plan.total_nbytes) {
      fail(ErrorCode::kInvalidArgument, "the file takes " +
                                            safetensors::counted(plan.total_nbytes, "byte") +
                                            ", the destination has " + safetensors::grouped(room));
    }
    const auto size = static_cast<std::size_t>(plan.total_nbytes);
    safetensors::serialize_to(plan, content.tensors(), {static_cast<std::byte*>(to), size});
  });
}
