#include "io/reopened_source.hpp"

#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "safetensors/error.hpp"

namespace safetensors::io {
namespace {

/// The file as it was when it was mapped.
class MappedSource final : public ByteSource {
 public:
  MappedSource(std::shared_ptr<const MappedFile> mapping, std::filesystem::path path)
      : mapping_(std::move(mapping)), path_(std::move(path)) {}
  [[nodiscard]] std::uint64_t size() const noexcept override { return mapping_->bytes().size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    if (offset > size() || to.size() > size() - offset) {
      fail(ErrorCode::kInvalidArgument, "read past the end of the file", {.path = path_});
    }
    if (to.empty()) return;
    const std::span<const std::byte> from =
        mapping_->bytes().subspan(static_cast<std::size_t>(offset), to.size());
    check_mapped(from, size(), path_);
    std::memcpy(to.data(), from.data(), to.size());
  }

 private:
  std::shared_ptr<const MappedFile> mapping_;
  std::filesystem::path path_;
};

}  // namespace

void check_mapped(std::span<const std::byte> mapped, std::uint64_t nbytes,
                  const std::filesystem::path& path) {
  if (!is_truncated(mapped)) return;
  fail(ErrorCode::kFileChanged,
       "the file was truncated after it was opened, when its size was " + std::to_string(nbytes),
       {.path = path});
}

std::unique_ptr<FileSource> reopen(const std::filesystem::path& path, const FileId& id) {
  std::unique_ptr<FileSource> file = FileSource::open(path);
  if (file->id() == id) return file;
  fail(ErrorCode::kFileChanged, "the file was replaced or written to while it was being loaded",
       {.path = path});
}

ReopenedSource::ReopenedSource(std::filesystem::path path, const FileId& id, bool is_direct,
                               std::shared_ptr<const MappedFile> mapping)
    : path_(std::move(path)), id_(id), is_direct_(is_direct), mapping_(std::move(mapping)) {}

void ReopenedSource::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  keep_open()->read_at(offset, to);
}

unsigned ReopenedSource::concurrency() const noexcept {
  try {
    return keep_open()->concurrency();
  } catch (const std::exception&) {
    return 0;  // reading will throw the same error
  }
}

std::shared_ptr<const ByteSource> ReopenedSource::keep_open() const {
  try {
    std::unique_ptr<FileSource> file = reopen(path_, id_);
    std::unique_ptr<ByteSource> direct = is_direct_ ? FileSource::make_direct(file) : nullptr;
    if (direct) return direct;
    return file;
  } catch (const Error&) {
    if (!mapping_) throw;
    return std::make_shared<const MappedSource>(mapping_, path_);
  }
}

}  // namespace safetensors::io
