// Writing files tensor by tensor.
#include "safetensors/writer.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/name_suggestions.hpp"
#include "base/text.hpp"
#include "c/file.hpp"
#include "c/guard.hpp"
#include "c/items.hpp"
#include "c/options.hpp"
#include "c/path.hpp"

using safetensors::ByteSink;
using safetensors::Dtype;
using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::FileWriter;
using safetensors::LayoutPlan;
using safetensors::TensorCopy;
using safetensors::TensorInfo;
using safetensors::TensorSpec;
using safetensors::c::check_pointer;
using safetensors::c::guarded;
using safetensors::c::Owned;
using safetensors::c::text_of;

/// A file that is being written, and the indices of its tensors.
struct safetensors_writer {
 public:
  struct Entry {
    std::size_t index;
    std::uint64_t nbytes;
    Dtype dtype;
  };

  safetensors_writer(std::unique_ptr<ByteSink> sink, std::span<const TensorSpec> specs,
                     const LayoutPlan& plan, bool fsync)
      : file_(std::move(sink), plan, {.fsync = fsync}) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      entries_.emplace(specs[i].name, Entry{i, plan.places[i].nbytes, specs[i].dtype});
    }
  }

  [[nodiscard]] FileWriter& file() noexcept { return file_; }
  /// Throws: Error kTensorNotFound.
  [[nodiscard]] const Entry& at(std::string_view name) const {
    const auto found = entries_.find(std::string(name));
    if (found != entries_.end()) return found->second;
    fail(ErrorCode::kTensorNotFound,
         "the file to be written has no tensor `" + safetensors::clipped(name) + "`" +
             safetensors::name_suggestions(name, std::views::keys(entries_)),
         {.subject = std::string(name)});
  }

 private:
  FileWriter file_;
  std::unordered_map<std::string, Entry> entries_;
};

namespace {

/// A sink of the caller, which is released with it.
class CallerSink final : public ByteSink {
 public:
  explicit CallerSink(Owned<safetensors_sink> sink) noexcept : sink_(std::move(sink)) {}

  [[nodiscard]] bool seeks() const noexcept override { return sink_.seeks != 0; }
  [[nodiscard]] std::size_t write_at(std::uint64_t offset,
                                     std::span<const std::byte> bytes) override {
    check(sink_.write(sink_.context, offset, bytes.data(), bytes.size()));
    return bytes.size();
  }
  void commit(std::uint64_t nbytes, bool) override {
    if (sink_.commit != nullptr) check(sink_.commit(sink_.context, nbytes));
  }

 private:
  static void check(std::int32_t os_error) {
    if (os_error == 0) return;
    fail(ErrorCode::kIo, "the sink failed with error " + std::to_string(os_error),
         {.os_error = os_error});
  }

  Owned<safetensors_sink> sink_;
};

/// Plans the file, makes its sink and begins to write.
template <typename MakeSink>
safetensors_writer* create(const safetensors_tensor* tensors, std::size_t count,
                           const safetensors_save_options& options, const MakeSink& make_sink) {
  safetensors::c::refuse_watch(options);
  check_pointer(tensors, count, "tensors");
  std::vector<TensorSpec> specs;
  specs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const TensorInfo info = safetensors::c::info_of(&tensors[i]);
    specs.push_back({info.name, info.shape, info.dtype});
  }
  const auto items = safetensors::c::metadata_of(options.metadata, options.metadata_count);
  const LayoutPlan plan = safetensors::plan_file(specs, items ? &*items : nullptr,
                                                 (options.flags & SAFETENSORS_BLOCKS) != 0
                                                     ? safetensors::Layout::kBlocks
                                                     : safetensors::Layout::kCanonical);
  return new safetensors_writer(make_sink(), specs, plan, (options.flags & SAFETENSORS_FSYNC) != 0);
}

std::span<const std::byte> given(const void* bytes, std::uint64_t nbytes) {
  check_pointer(bytes, nbytes, "bytes");
  return {static_cast<const std::byte*>(bytes), safetensors::memory_size(nbytes)};
}

}  // namespace

std::int32_t safetensors_writer_create(const char* path, std::size_t path_size,
                                       const safetensors_tensor* tensors, std::size_t count,
                                       const safetensors_save_options* options,
                                       safetensors_writer** writer, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(writer, 1, "writer");
    const auto given =
        safetensors::c::save_options_of(options, SAFETENSORS_FSYNC | SAFETENSORS_BLOCKS);
    const std::filesystem::path target = safetensors::c::path_of(path, path_size);
    *writer = create(tensors, count, given, [&] { return safetensors::make_file_sink(target); });
  });
}

std::int32_t safetensors_writer_create_sink(const safetensors_sink* sink,
                                            const safetensors_tensor* tensors, std::size_t count,
                                            const safetensors_save_options* options,
                                            safetensors_writer** writer, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(sink, 1, "sink");
    const safetensors_sink copy = safetensors::c::options_of(sink, "sink");
    if (copy.write == nullptr) fail(ErrorCode::kInvalidArgument, "write is NULL");
    auto owned = std::make_unique<CallerSink>(Owned(copy));
    safetensors::c::check_reserved(copy.reserved);
    safetensors::c::check_bool(copy.seeks, "seeks");
    check_pointer(writer, 1, "writer");
    const auto given = safetensors::c::save_options_of(options, SAFETENSORS_BLOCKS);
    *writer = create(tensors, count, given, [&] { return std::move(owned); });
  });
}

std::int32_t safetensors_writer_write(safetensors_writer* writer, const char* name,
                                      std::size_t name_size, std::uint64_t begin, const void* bytes,
                                      std::uint64_t nbytes, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(writer, 1, "writer");
    const auto& entry = writer->at(text_of(name, name_size, "name"));
    if (begin == 0 && nbytes == entry.nbytes) {  // also of a tensor without bytes
      writer->file().write(entry.index, given(bytes, nbytes));
    } else {
      writer->file().write_at(entry.index, begin, given(bytes, nbytes));
    }
  });
}

std::int32_t safetensors_writer_copy(safetensors_writer* writer, const char* name,
                                     std::size_t name_size, const safetensors_file* file,
                                     const safetensors_tensor* tensor, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(writer, 1, "writer");
    check_pointer(file, 1, "file");
    const std::string_view text = text_of(name, name_size, "name");
    const auto& entry = writer->at(text);
    const TensorInfo info = safetensors::c::bytes_of(*file, tensor);
    const safetensors::SafeOpen& from = file->file(tensor->file);
    // An empty part is the same in every dtype.
    if (info.nbytes() != entry.nbytes || (entry.nbytes != 0 && info.dtype != entry.dtype)) {
      fail(ErrorCode::kInvalidTensorInfo,
           "tensor `" + safetensors::clipped(text) + "` is " +
               safetensors::counted(entry.nbytes, "byte") + " of " +
               std::string(safetensors::name(entry.dtype)) + ", what is to be copied is " +
               safetensors::counted(info.nbytes(), "byte") + " of " +
               std::string(safetensors::name(info.dtype)),
           {.subject = std::string(text)});
    }
    const TensorCopy copy = {entry.index, from.position(info)};
    writer->file().copy(*from.source(), {&copy, 1});
  });
}

std::int32_t safetensors_writer_commit(safetensors_writer* writer, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(writer, 1, "writer");
    writer->file().commit();
  });
}

// NOLINTNEXTLINE(misc-const-correctness): frees it
void safetensors_writer_free(safetensors_writer* writer) { delete writer; }
