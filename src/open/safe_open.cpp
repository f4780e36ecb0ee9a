#include "safetensors/safe_open.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <ranges>
#include <tuple>
#include <utility>

#include "base/checked.hpp"
#include "base/text.hpp"
#include "io/file_source.hpp"
#include "io/io_policy.hpp"
#include "io/read_ahead.hpp"
#include "io/reopened_source.hpp"
#include "io/system.hpp"
#include "open/read_header.hpp"
#include "open/strided_read.hpp"

namespace safetensors {
namespace {

io::IoPolicy policy_for(const FileSource& source) {
  io::FileInfo file{.is_remote = source.is_remote(), .nbytes = source.size()};
  if (file.is_remote) file.memory_available = io::memory_available();
  return io::choose_io_policy(file);
}

Backend backend_for_device(const FileSource& source) {
  io::FileInfo file{.nbytes = source.size(), .memory_available = io::memory_available()};
  if (file.nbytes > file.memory_available / 2) file.cached_nbytes = source.cached_nbytes();
  return io::should_bypass_page_cache(file) ? Backend::kDirect : Backend::kPread;
}

/// Returns the source that reads a file, and its backend.
std::pair<std::shared_ptr<const ByteSource>, Backend> readable(std::unique_ptr<FileSource> file,
                                                               const std::filesystem::path& path,
                                                               const OpenOptions& options) {
  const FileId id = file->id();
  std::unique_ptr<ByteSource> direct =
      options.backend == Backend::kDirect ? FileSource::make_direct(file) : nullptr;
  const Backend backend = direct ? Backend::kDirect : Backend::kPread;
  if (!options.keeps_file_open) {
    return {std::make_shared<const io::ReopenedSource>(path, id, direct != nullptr, nullptr),
            backend};
  }
  if (direct) return {std::move(direct), backend};
  return {std::move(file), backend};
}

}  // namespace

class SafeOpen::File {
 public:
  /// Takes a file of the system.
  File(std::unique_ptr<FileSource> source, const std::filesystem::path& path, OpenOptions options)
      : path_(path), id_(source->id()), parsed_(read_header(*source, path)) {
    const bool is_chosen = options.backend == Backend::kMmap || options.backend == Backend::kAuto;
    if (options.is_for_device && is_chosen) options.backend = backend_for_device(*source);
    if (options.backend == Backend::kAuto) {
      const io::IoPolicy policy = policy_for(*source);
      is_warmed_ = policy == io::IoPolicy::kWarmAndMap;
      options.backend = policy == io::IoPolicy::kRead ? Backend::kPread : Backend::kMmap;
    }
    if (options.backend == Backend::kMmap) mapping_ = source->map();
    if (mapping_) {
      memory_ = mapping_->bytes();
      if (is_warmed_ && options.keeps_file_open) cold_ = std::move(source);
      return;
    }
    std::tie(source_, backend_) = readable(std::move(source), path, options);
  }

  /// Takes any other source.
  File(std::shared_ptr<const ByteSource> source, const std::filesystem::path& label)
      : path_(label),
        parsed_(read_header(*source, label)),
        source_(std::move(source)),
        backend_(Backend::kSource) {
    // A TensorView takes writable bytes; SafeOpen marks these as read-only.
    const std::span<const std::byte> memory = source_->memory();
    memory_ = {const_cast<std::byte*>(memory.data()), memory.size()};
  }

  [[nodiscard]] const Header& header() const noexcept { return parsed_.header; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const std::shared_ptr<const MappedFile>& mapping() const noexcept {
    return mapping_;
  }
  [[nodiscard]] Backend backend() const noexcept { return backend_; }
  [[nodiscard]] const ByteSource& source() const noexcept { return *source_; }
  [[nodiscard]] std::shared_ptr<const ByteSource> bulk_source() const {
    if (source_) return source_;
    if (cold_) return cold_;
    return std::make_shared<const io::ReopenedSource>(path_, id_, false, mapping_);
  }
  /// Returns whether the file's bytes are in memory: mapped, or those of a MemorySource.
  [[nodiscard]] bool is_in_memory() const noexcept { return !memory_.empty(); }
  /// Returns the owner of the bytes in memory.
  [[nodiscard]] std::shared_ptr<const void> memory_owner() const noexcept {
    if (mapping_) return mapping_;
    return source_;
  }
  void warm(const Interrupt& interrupt) const {
    constexpr std::uint64_t kTenths = 9;  // if as much is cached, faults for the rest are cheaper
    if (!is_warmed_) return;
    const std::unique_ptr<const FileSource> reopened = cold_ ? nullptr : io::reopen(path_, id_);
    const FileSource& file = cold_ ? *cold_ : *reopened;
    if (file.cached_nbytes() / kTenths >= file.size() / 10) return;
    io::warm(file, parsed_.data_begin, file.size(), interrupt);
  }
  [[nodiscard]] std::uint64_t data_begin() const noexcept { return parsed_.data_begin; }
  [[nodiscard]] std::string header_json() const {
    std::array<std::byte, kLengthSize> length{};
    read_start(0, length);
    const std::uint64_t nbytes = parsed_.data_begin - kLengthSize;
    for (std::size_t i = 0; i < kLengthSize; ++i) {
      if (length[i] == static_cast<std::byte>(nbytes >> (8 * i) & 0xFF)) continue;
      fail(ErrorCode::kFileChanged,
           "the header has a different length than when the file was opened", {.path = path_});
    }
    std::string json(static_cast<std::size_t>(nbytes), '\0');
    read_start(kLengthSize, std::as_writable_bytes(std::span(json)));
    return json;
  }
  void read_ahead() const noexcept {
    if (mapping_ && !is_warmed_) io::read_ahead(mapping_, parsed_.data_begin);
  }
  /// Throws: Error kInvalidArgument if the bytes are outside this file, as of another file's entry.
  [[nodiscard]] std::uint64_t position(const TensorInfo& info) const {
    const std::span<const TensorInfo> all = header().tensors();
    const std::uint64_t data_nbytes = all.empty() ? 0 : all.back().end;
    if (info.begin > info.end || info.end > data_nbytes) {
      fail(ErrorCode::kInvalidArgument,
           "tensor `" + std::string(info.name) + "` does not belong to this file",
           {.path = path_, .subject = std::string(info.name)});
    }
    return parsed_.data_begin + info.begin;
  }
  /// Requires: is_in_memory().
  [[nodiscard]] std::span<std::byte> in_memory(const TensorInfo& info) const {
    return memory_.subspan(static_cast<std::size_t>(position(info)),
                           static_cast<std::size_t>(info.nbytes()));
  }
  /// Call before copying the tensor's first `end` bytes from memory. Throws Error kFileChanged if
  /// they are mapped and the file has been truncated below them.
  void check_length(const TensorInfo& info, std::uint64_t end) const {
    if (!mapping_) return;
    io::check_mapped(in_memory(info).first(static_cast<std::size_t>(end)), memory_.size(), path_);
  }

 private:
  /// Reads bytes of the header, or of its length, again.
  void read_start(std::size_t offset, std::span<std::byte> to) const {
    if (!mapping_) {
      source().read_at(offset, to);
      return;
    }
    const std::span<const std::byte> from = memory_.subspan(offset, to.size());
    io::check_mapped(from, memory_.size(), path_);
    std::memcpy(to.data(), from.data(), to.size());
  }

  std::filesystem::path path_;
  FileId id_;  // of a file of the system
  ReadHeader parsed_;
  std::span<std::byte> memory_;  // the whole file, if it is in memory
  std::shared_ptr<const MappedFile> mapping_;
  // A mapping needs no descriptor: source_ is null with a mapping, and cold_ is set only to warm
  // one.
  std::shared_ptr<const ByteSource> source_;
  std::shared_ptr<const FileSource> cold_;
  Backend backend_ = Backend::kMmap;
  bool is_warmed_ = false;
};

std::shared_ptr<const ByteSource> open_source(const std::filesystem::path& path,
                                              OpenOptions options) {
  return readable(FileSource::open(path), path, options).first;
}

SafeOpen::SafeOpen(const std::filesystem::path& path, OpenOptions options)
    : file_(std::make_shared<const File>(FileSource::open(path), path, options)) {}

SafeOpen::SafeOpen(int descriptor, const std::filesystem::path& label, OpenOptions options) {
  options.keeps_file_open = true;  // the label need not be its path
  file_ = std::make_shared<const File>(FileSource::duplicate(descriptor, label), label, options);
}

SafeOpen::SafeOpen(std::shared_ptr<const ByteSource> source, const std::filesystem::path& label) {
  if (!source) fail(ErrorCode::kInvalidArgument, "the source is null");
  file_ = std::make_shared<const File>(std::move(source), label);
}

const Header& SafeOpen::header() const& noexcept { return file_->header(); }

const std::filesystem::path& SafeOpen::path() const& noexcept { return file_->path(); }

Backend SafeOpen::backend() const noexcept { return file_->backend(); }

std::shared_ptr<const MappedFile> SafeOpen::mapping() const noexcept { return file_->mapping(); }

std::shared_ptr<const ByteSource> SafeOpen::source() const { return file_->bulk_source(); }

std::uint64_t SafeOpen::position(const TensorInfo& info) const { return file_->position(info); }

std::uint64_t SafeOpen::header_nbytes() const noexcept { return data_offset() - kLengthSize; }

std::uint64_t SafeOpen::data_offset() const noexcept { return file_->data_begin(); }

std::string SafeOpen::header_json() const { return file_->header_json(); }

std::vector<std::string_view> SafeOpen::keys() const& {
  std::vector<std::string_view> keys;
  keys.reserve(header().size());
  for (const TensorInfo* info : header().sorted_by_name()) keys.push_back(info->name);
  return keys;
}

const TensorInfo* SafeOpen::find(std::string_view name) const& noexcept {
  return header().find(name);
}

const TensorInfo& SafeOpen::at(std::string_view name) const& {
  if (const TensorInfo* info = find(name)) return *info;
  try {
    return header().at(name);
  } catch (const Error& error) {
    throw error.with_context({}, path());
  }
}

TensorView SafeOpen::get_tensor(std::string_view name) const { return get_tensor(at(name)); }

TensorView SafeOpen::get_tensor(const TensorInfo& info, const Interrupt& interrupt) const {
  if (file_->is_in_memory()) {
    TensorView view(info.name, info.dtype, info.shape, file_->in_memory(info), file_,
                    file_->memory_owner());
    view.file_ = &path();
    view.is_writable_ = file_->mapping() != nullptr;
    return view;
  }
  (void)file_->position(info);  // throws for another file's entry, before memory is allocated
  auto buffer = std::make_shared<const Buffer>(memory_size(info.nbytes()));
  read(info, buffer->bytes(), interrupt);
  const std::span<std::byte> bytes = buffer->bytes();
  TensorView view(info.name, info.dtype, info.shape, bytes, file_, std::move(buffer));
  view.file_ = &path();
  return view;
}

std::vector<TensorView> SafeOpen::get_tensors(const Interrupt& interrupt) const {
  std::vector<TensorView> views;
  views.reserve(header().size());
  if (file_->is_in_memory()) {
    file_->warm(interrupt);
    for (const TensorInfo& info : header().tensors()) views.push_back(get_tensor(info));
    return views;
  }
  std::vector<ReadPiece> pieces;
  pieces.reserve(header().size());
  for (const TensorInfo& info : header().tensors()) {
    auto buffer = std::make_shared<const Buffer>(memory_size(info.nbytes()));
    const std::span<std::byte> bytes = buffer->bytes();
    pieces.push_back({file_->position(info), bytes});
    views.emplace_back(info.name, info.dtype, info.shape, bytes, file_, std::move(buffer));
    views.back().file_ = &path();
  }
  read_all(file_->source(), pieces, interrupt);
  return views;
}

void SafeOpen::warm(const Interrupt& interrupt) const { file_->warm(interrupt); }

void SafeOpen::read_ahead() const noexcept { file_->read_ahead(); }

TensorView SafeOpen::get_slice(std::string_view name, Indices indices) const {
  return get_slice(at(name), indices);
}

TensorView SafeOpen::get_slice(const TensorInfo& info, Indices indices,
                               const Interrupt& interrupt) const {
  Part part = select_part(info, indices);
  // The view's name points into the file's header. It owns its shape, and its bytes if they are a
  // copy.
  struct Kept {
    std::shared_ptr<const File> names;
    std::vector<std::uint64_t> shape;
    Buffer bytes;
  };
  const ByteRuns& runs = part.runs;
  if (file_->is_in_memory() && runs.loops.empty()) {
    check_runs({&runs, 1}, info.nbytes(), runs.nbytes());
    auto kept = std::make_shared<const Kept>(Kept{file_, std::move(part.selection.shape), {}});
    const std::span<const std::uint64_t> shape = kept->shape;
    TensorView view(info.name, info.dtype, shape,
                    file_->in_memory(info).subspan(static_cast<std::size_t>(runs.first),
                                                   static_cast<std::size_t>(runs.run_nbytes)),
                    std::move(kept), file_->memory_owner());
    view.file_ = &path();
    view.is_writable_ = file_->mapping() != nullptr;
    return view;
  }
  const auto kept = std::make_shared<const Kept>(
      Kept{file_, std::move(part.selection.shape), Buffer(memory_size(runs.nbytes()))});
  read(info, {&runs, 1}, kept->bytes.bytes(), interrupt);
  TensorView view(info.name, info.dtype, kept->shape, kept->bytes.bytes(), kept, kept);
  view.file_ = &path();
  return view;
}

Part SafeOpen::select_part(const TensorInfo& info, Indices indices) const {
  try {
    return safetensors::select_part(info, indices);
  } catch (const Error& error) {
    throw error.with_context({}, path());
  }
}

void SafeOpen::read(const TensorInfo& info, std::span<std::byte> to,
                    const Interrupt& interrupt) const {
  const TensorRead only{&info, to};
  read({&only, 1}, interrupt);
}

void SafeOpen::read(std::span<const TensorRead> reads, const Interrupt& interrupt) const {
  std::vector<const TensorRead*> whole;
  whole.reserve(reads.size());
  for (const TensorRead& each : reads) {
    if (!each.runs.empty()) continue;
    whole.push_back(&each);
    if (each.to.size() != each.info->nbytes()) {
      fail(ErrorCode::kInvalidArgument,
           "tensor `" + std::string(each.info->name) + "` has " +
               counted(each.info->nbytes(), "byte") + ", the destination " +
               grouped(each.to.size()),
           {.path = path(), .subject = std::string(each.info->name)});
    }
  }
  if (file_->is_in_memory()) {
    // Files are truncated at their end, so checking the last of the tensors checks them all.
    const TensorInfo* furthest = nullptr;
    std::vector<CopyPiece> pieces;
    pieces.reserve(whole.size());
    for (const TensorRead* const each : whole) {
      pieces.push_back({each->to.data(), file_->in_memory(*each->info).data(), each->to.size()});
      if (furthest == nullptr || each->info->end > furthest->end) furthest = each->info;
    }
    if (furthest != nullptr) file_->check_length(*furthest, furthest->nbytes());
    copy_all(pieces, interrupt);
  } else {
    std::vector<ReadPiece> pieces;
    pieces.reserve(whole.size());
    for (const TensorRead* const each : whole) {
      pieces.push_back({file_->position(*each->info), each->to});
    }
    read_all(file_->source(), pieces, interrupt);
  }
  for (const TensorRead& each : reads) {
    if (!each.runs.empty()) read(*each.info, each.runs, each.to, interrupt);
  }
}

void SafeOpen::read(const TensorInfo& info, std::span<const ByteRuns> runs, std::span<std::byte> to,
                    const Interrupt& interrupt) const {
  check_runs(runs, info.nbytes(), UINT64_MAX);
  if (to.size() != to_end_of(runs)) {
    fail(ErrorCode::kInvalidArgument,
         "the selection takes " + counted(to_end_of(runs), "byte") + ", the destination has " +
             grouped(to.size()),
         {.path = path(), .subject = std::string(info.name)});
  }
  if (file_->is_in_memory()) {
    file_->check_length(info, end_of(runs));
    copy_runs(file_->in_memory(info), runs, to, interrupt);
  } else {
    read_runs(file_->source(), file_->position(info), runs, to, interrupt);
  }
}

}  // namespace safetensors
