// Sums: the digests of a model.
#include "c/sums.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/path.hpp"
#include "safetensors/digest.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/verify.hpp"

using safetensors::Damage;
using safetensors::Digest;
using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::Sums;
using safetensors::TensorSums;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::put_digest;
using safetensors::c::Stopped;
using safetensors::c::Watch;

namespace {

/// Calls the program's function for what differs.
void report_damage(std::int32_t (*report)(void*, const safetensors_damage*), void* context,
                   const Damage& damage) {
  const std::string text = safetensors::text_of(damage);
  const std::string file = safetensors::c::utf8_of(damage.file);
  const safetensors_damage shown = {
      .text = text.c_str(),
      .file = file.c_str(),
      .tensor = damage.tensor.c_str(),
      .expected = damage.expected.c_str(),
      .found = damage.expected.empty() ? "" : damage.found.c_str(),
      .begin = damage.begin,
      .end = damage.end,
  };
  if (const std::int32_t value = report(context, &shown); value != 0) throw Stopped{value};
}

}  // namespace

void safetensors::c::put_digest(const Digest& digest, char* to) {
  const std::string text = digest.text();
  static_assert(sizeof "sha256:" + 64 <= SAFETENSORS_DIGEST_SIZE);
  std::memcpy(to, text.c_str(), text.size() + 1);
}

std::int32_t safetensors_sums_open(const char* path, std::size_t path_size, safetensors_sums** sums,
                                   safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(sums, 1, "sums");
    auto read = std::make_shared<const safetensors::c::OpenSums>(
        Sums::read(safetensors::find_sums(safetensors::c::path_of(path, path_size))));
    *sums = new safetensors_sums{std::move(read)};
  });
}

// NOLINTNEXTLINE(misc-const-correctness): frees it
void safetensors_sums_close(safetensors_sums* sums) { delete sums; }

std::int32_t safetensors_sums_digest(const safetensors_sums* sums, const char* name,
                                     std::size_t name_size, char text[SAFETENSORS_DIGEST_SIZE],
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(sums, 1, "sums");
    check_pointer(text, 1, "text");
    const std::string_view wanted = safetensors::c::text_of(name, name_size, "name");
    const std::optional<TensorSums> found = sums->sums->sums.find(wanted);
    if (!found) {
      fail(ErrorCode::kTensorNotFound,
           "the sums have no digest of tensor `" + safetensors::clipped(wanted) + "`",
           {.subject = std::string(wanted)});
    }
    put_digest(found->xxh3_128 ? *found->xxh3_128 : *found->sha256, text);
  });
}

std::int32_t safetensors_digest(const safetensors_tensor* tensor,
                                char text[SAFETENSORS_DIGEST_SIZE], safetensors_error* error) {
  return guarded(error, [&] {
    const safetensors::TensorInfo info = safetensors::c::info_of(tensor);
    check_pointer(tensor->data, tensor->nbytes, "data");
    check_pointer(text, 1, "text");
    const std::span bytes(static_cast<const std::byte*>(tensor->data),
                          safetensors::memory_size(tensor->nbytes));
    (void)safetensors::detail::checked({info.name, info.shape, bytes, info.dtype});
    put_digest(safetensors::tensor_digest(safetensors::DigestAlgorithm::kXxh3_128, info.dtype,
                                          info.shape, bytes),
               text);
  });
}

std::int32_t safetensors_verify(const safetensors_file* file, const safetensors_sums* sums,
                                std::int32_t (*report)(void* context,
                                                       const safetensors_damage* damage),
                                void* context, std::size_t* count, const safetensors_watch* watch,
                                safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    check_pointer(sums, 1, "sums");
    check_pointer(count, 1, "count");
    const Watch watching(watch);
    safetensors::VerifyOptions options{.is_whole = file->is_whole_model()};
    options.interrupt = watching.interrupt();
    options.progress = watching.progress();
    if (report != nullptr) {
      options.report = [=](const Damage& damage) { report_damage(report, context, damage); };
    }
    *count = safetensors::find_damage(file->as_model(), sums->sums->sums, options).size();
  });
}
