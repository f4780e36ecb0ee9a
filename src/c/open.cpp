// Opening files, models and headers.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/model_source.hpp"
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

/// The sums that files are compared with; nullptr if there are none.
std::shared_ptr<const safetensors::c::OpenSums> sums_of(const safetensors_options& options) {
  return options.sums == nullptr ? nullptr : options.sums->sums;
}

SafeOpen open_checked(std::shared_ptr<const safetensors::ByteSource> source,
                      const safetensors::c::OpenSums& sums, const std::filesystem::path& path) {
  return SafeOpen(
      safetensors::checked_source(std::move(source), sums.by_file.digests_of(path), path), path);
}

/// Returns what opens files of paths, and compares them with sums if there are any.
safetensors::Model::Opener opener_of(const safetensors_options& options) {
  return [files = open_options_of(options),
          sums = sums_of(options)](const std::filesystem::path& path) {
    return sums ? open_checked(safetensors::open_source(path, files), *sums, path)
                : SafeOpen(path, files);
  };
}

/// Returns what opens the files of a model of the caller's folder.
safetensors::Model::Opener opener_of(const safetensors_options& options,
                                     safetensors::ModelSource folder) {
  return [folder = std::move(folder), sums = sums_of(options)](const std::filesystem::path& path) {
    auto source = folder.open_file(path);
    return sums ? open_checked(std::move(source), *sums, path) : SafeOpen(std::move(source), path);
  };
}

safetensors::ModelChoice choice_of(const safetensors_options& options) {
  return {.name = std::string(text_of(options.name, options.name_size, "name")),
          .variant = std::string(text_of(options.variant, options.variant_size, "variant"))};
}

/// Returns the handle of a model. is_whole: a folder or an index led to its files.
safetensors_file* opened_model(safetensors::Model model, const safetensors_options& options,
                               bool is_whole) {
  if (is_whole && options.sums != nullptr) {
    safetensors::refuse_absent(model, options.sums->sums->sums);
  }
  if ((options.flags & SAFETENSORS_OPEN_ALL) != 0) model.open_all();
  return new safetensors_file(std::move(model), is_whole);
}

void refuse_sums(const safetensors_options& options) {
  if (options.sums == nullptr) return;
  fail(ErrorCode::kInvalidArgument, "sums are for safetensors_open and for models");
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
    *file = new safetensors_file(opener_of(given)(path_of(path, path_size)));
  });
}

std::int32_t safetensors_open_model(const char* path, std::size_t path_size,
                                    const safetensors_options* options, safetensors_file** model,
                                    safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(model, 1, "model");
    const safetensors_options given = options_of(options, "options");
    safetensors::c::check_flags(given.flags, kFileFlags | SAFETENSORS_OPEN_ALL);
    const std::filesystem::path where = path_of(path, path_size);
    // Sums are compared with the files' names before any file is opened.
    const bool opens_all = (given.flags & SAFETENSORS_OPEN_ALL) != 0 && given.sums == nullptr;
    safetensors::Model opened = safetensors::open_model(
        where, {.choice = choice_of(given), .opener = opener_of(given), .opens_all = opens_all});
    const safetensors::FoundModel& found = opened.found();
    const bool is_whole = found.folder == where || !found.index.empty();
    *model = opened_model(std::move(opened), given, is_whole);
  });
}

std::int32_t safetensors_open_model_source(const safetensors_model_source* source,
                                           const char* label, std::size_t label_size,
                                           const safetensors_options* options,
                                           safetensors_file** model, safetensors_error* error) {
  return guarded(error, [&] {
    safetensors::ModelSource folder = safetensors::c::model_source_of(source, label, label_size);
    check_pointer(model, 1, "model");
    const safetensors_options given = options_of(options, "options");
    safetensors::c::check_flags(given.flags, SAFETENSORS_OPEN_ALL);
    if (given.backend != 0) fail(ErrorCode::kInvalidArgument, "a source has no backend");
    safetensors::FoundModel found = safetensors::find_model_files(folder, choice_of(given));
    *model = opened_model({std::move(found), opener_of(given, std::move(folder))}, given, true);
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
