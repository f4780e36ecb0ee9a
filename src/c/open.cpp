// Opening files, models and headers.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/options.hpp"
#include "c/path.hpp"
#include "c/source.hpp"
#include "c/sums.hpp"
#include "safetensors/verify.hpp"

using safetensors::Backend;
using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::SafeOpen;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::options_of;
using safetensors::c::path_of;
using safetensors::c::text_of;

namespace {

constexpr std::uint32_t kFileFlags = SAFETENSORS_FOR_DEVICE | SAFETENSORS_CLOSE_BETWEEN;

Backend backend_of(std::int32_t number) {
  switch (number) {
    case SAFETENSORS_MMAP:
      return Backend::kMmap;
    case SAFETENSORS_PREAD:
      return Backend::kPread;
    case SAFETENSORS_AUTO:
      return Backend::kAuto;
    case SAFETENSORS_DIRECT:
      return Backend::kDirect;
    default:
      fail(ErrorCode::kInvalidArgument, "no backend has number " + std::to_string(number));
  }
}

safetensors::OpenOptions open_options_of(const safetensors_options& options) {
  return {.backend = backend_of(options.backend),
          .is_for_device = (options.flags & SAFETENSORS_FOR_DEVICE) != 0,
          .keeps_file_open = (options.flags & SAFETENSORS_CLOSE_BETWEEN) == 0};
}

/// Returns the checked options of a function that opens one file.
safetensors_options file_options_of(const safetensors_options* given) {
  const safetensors_options options = options_of(given, "options");
  safetensors::c::check_flags(options.flags, kFileFlags);
  if (options.name_size != 0 || options.variant_size != 0) {
    fail(ErrorCode::kInvalidArgument, "a name or a variant is for safetensors_open_model");
  }
  return options;
}

/// Opens files of paths, and compares them with sums if there are any.
class Opener {
 public:
  explicit Opener(const safetensors_options& options) : options_(open_options_of(options)) {
    if (options.sums != nullptr) sums_ = options.sums->sums;
  }

  SafeOpen operator()(const std::filesystem::path& path) const {
    if (!sums_) return SafeOpen(path, options_);
    return SafeOpen(safetensors::checked_source(safetensors::open_source(path, options_),
                                                sums_->by_file.digests_of(path), path),
                    path);
  }

 private:
  safetensors::OpenOptions options_;
  std::shared_ptr<const safetensors::c::OpenSums> sums_;
};

void refuse_sums(const safetensors_options& options) {
  if (options.sums == nullptr) return;
  fail(ErrorCode::kInvalidArgument, "sums are for safetensors_open and safetensors_open_model");
}

std::span<const std::byte> bytes_at(const void* bytes, std::size_t nbytes, const char* what) {
  check_pointer(bytes, nbytes, what);
  return {static_cast<const std::byte*>(bytes), nbytes};
}

}  // namespace

std::int32_t safetensors_open(const char* path, std::size_t path_size,
                              const safetensors_options* options, safetensors_file** file,
                              safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    const safetensors_options given = file_options_of(options);
    *file = new safetensors_file(Opener(given)(path_of(path, path_size)));
  });
}

std::int32_t safetensors_open_model(const char* path, std::size_t path_size,
                                    const safetensors_options* options, safetensors_file** model,
                                    safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(model, 1, "model");
    const safetensors_options given = options_of(options, "options");
    safetensors::c::check_flags(given.flags, kFileFlags | SAFETENSORS_OPEN_ALL);
    const safetensors::ModelChoice choice = {
        .name = std::string(text_of(given.name, given.name_size, "name")),
        .variant = std::string(text_of(given.variant, given.variant_size, "variant"))};
    const std::filesystem::path where = path_of(path, path_size);
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(where, ignored);
    safetensors::Model opened(safetensors::find_model_files(where, choice), Opener(given));
    const bool is_whole = is_folder || !opened.found().index.empty();
    if (is_whole && given.sums != nullptr) {
      safetensors::refuse_absent(opened, given.sums->sums->sums);
    }
    if ((given.flags & SAFETENSORS_OPEN_ALL) != 0) opened.open_all();
    *model = new safetensors_file(std::move(opened), is_whole);
  });
}

std::int32_t safetensors_open_descriptor(int descriptor, const char* label, std::size_t label_size,
                                         const safetensors_options* options,
                                         safetensors_file** file, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    const safetensors_options given = file_options_of(options);
    refuse_sums(given);
    *file = new safetensors_file(SafeOpen(
        descriptor, safetensors::c::label_of(label, label_size, "label"), open_options_of(given)));
  });
}

std::int32_t safetensors_open_memory(const void* bytes, std::size_t nbytes, safetensors_file** file,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    *file = new safetensors_file(SafeOpen(
        std::make_shared<const safetensors::MemorySource>(bytes_at(bytes, nbytes, "bytes"))));
  });
}

std::int32_t safetensors_open_source(const safetensors_source* source, const char* label,
                                     std::size_t label_size, const safetensors_options* options,
                                     safetensors_file** file, safetensors_error* error) {
  return guarded(error, [&] {
    const auto owned = safetensors::c::source_of(source);
    check_pointer(file, 1, "file");
    const safetensors_options given = options_of(options, "options");
    refuse_sums(given);
    if (given.backend != 0 || given.flags != 0 || given.name_size != 0 || given.variant_size != 0) {
      fail(ErrorCode::kInvalidArgument, "a source has no backend, flags, name or variant");
    }
    const std::filesystem::path name = safetensors::c::label_of(label, label_size, "label");
    owned->set_label(name);
    *file = new safetensors_file(SafeOpen(owned, name));
  });
}

std::int32_t safetensors_header_length(const void* start, std::size_t nbytes,
                                       std::uint64_t file_nbytes, std::uint64_t* length,
                                       safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(length, 1, "length");
    *length = safetensors::header_length(bytes_at(start, nbytes, "start"), file_nbytes);
  });
}

std::int32_t safetensors_open_header(const void* json, std::size_t nbytes,
                                     std::uint64_t data_nbytes, safetensors_file** file,
                                     safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(file, 1, "file");
    safetensors::Header header =
        safetensors::Header::parse(bytes_at(json, nbytes, "json"), data_nbytes);
    *file = new safetensors_file(std::move(header), nbytes);
  });
}

// NOLINTNEXTLINE(misc-const-correctness): frees it
void safetensors_close(safetensors_file* file) { delete file; }
