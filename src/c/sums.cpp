// Sums: the digests of a model.
#include "c/sums.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

std::string text_of_damage(const Damage& damage) {
  if (damage.expected.empty()) return damage.found;
  try {
    safetensors::fail_damaged({damage});
  } catch (const safetensors::Error& error) {
    return error.what();
  }
}

/// Calls the program's function for what differs.
class Reporter {
 public:
  Reporter(std::int32_t (*report)(void*, const safetensors_damage*), void* context) noexcept
      : report_(report), context_(context) {}

  void add(const Damage& damage) {
    ++count_;
    if (report_ == nullptr) return;
    const std::string text = text_of_damage(damage);
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
    if (const std::int32_t value = report_(context_, &shown); value != 0) throw Stopped{value};
  }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }

 private:
  std::int32_t (*report_)(void*, const safetensors_damage*);
  void* context_;
  std::size_t count_ = 0;
};

std::string text_of_absent(const TensorSums& tensor) {
  return "the model has no tensor `" + safetensors::clipped(tensor.name) +
         "`, of which the sums have a digest";
}

void verify(const safetensors_file& file, const safetensors::c::OpenSums& opened,
            Reporter& reporter, const Watch& watch) {
  const Sums& sums = opened.sums;
  std::vector<bool> is_there(sums.files().size());
  std::uint64_t total = 0;
  const std::uint32_t count = file.file_count();
  for (std::uint32_t i = 0; i < count; ++i) {
    is_there[opened.by_file.entry_of(file.file(i).path())] = true;
    total += safetensors::unchecked(file.file(i).source())->size();
  }
  std::uint64_t before = 0;
  const auto progress = [&](std::uint64_t done) { watch.show(before + done, total); };
  for (std::uint32_t i = 0; i < count; ++i) {
    const safetensors::SafeOpen& each = file.file(i);
    const auto damage = safetensors::find_damage(
        each, opened.by_file.digests_of(each.path()), watch.interrupt(),
        watch.has_progress() ? std::function<void(std::uint64_t)>(progress) : nullptr);
    for (const Damage& range : damage) reporter.add(range);
    before += safetensors::unchecked(each.source())->size();
  }
  if (const safetensors::Model* const model = file.whole_model()) {
    for (std::size_t i = 0; i < is_there.size(); ++i) {
      if (is_there[i]) continue;
      const safetensors::FileSums& entry = sums.files()[i];
      reporter.add({.tensor = {},
                    .file = entry.path,
                    .begin = 0,
                    .end = entry.nbytes,
                    .expected = {},
                    .found = "the model has no file " + safetensors::clipped(entry.path) +
                             ", of which the sums have digests"});
    }
    for (const TensorSums& tensor : safetensors::c::absent_of(sums, *model)) {
      if (!is_there[tensor.file]) continue;
      reporter.add({.tensor = std::string(tensor.name),
                    .file = sums.files()[tensor.file].path,
                    .begin = 0,
                    .end = sums.files()[tensor.file].nbytes,
                    .expected = {},
                    .found = text_of_absent(tensor)});
    }
  }
  watch.show(total, total);
}

}  // namespace

void safetensors::c::put_digest(const Digest& digest, char* to) {
  const std::string text = digest.text();
  static_assert(sizeof "sha256:" + 64 <= SAFETENSORS_DIGEST_SIZE);
  std::memcpy(to, text.c_str(), text.size() + 1);
}

std::vector<TensorSums> safetensors::c::absent_of(const Sums& sums, const Model& model) {
  std::vector<TensorSums> absent;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const TensorSums tensor = sums.tensor(i);
    if (!model.contains(tensor.name)) absent.push_back(tensor);
  }
  return absent;
}

void safetensors::c::refuse_absent(const Sums& sums, const Model& model) {
  const std::vector<TensorSums> absent = absent_of(sums, model);
  if (absent.empty()) return;
  fail(ErrorCode::kDamaged, text_of_absent(absent.front()),
       {.path = model.found().folder, .subject = std::string(absent.front().name)});
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
    Reporter reporter(report, context);
    verify(*file, *sums->sums, reporter, Watch(watch));
    *count = reporter.count();
  });
}
