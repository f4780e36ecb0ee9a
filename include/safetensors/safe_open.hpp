// Opening a file for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/byte_source.hpp"
#include "safetensors/element.hpp"
#include "safetensors/export.hpp"
#include "safetensors/header.hpp"
#include "safetensors/mapped_file.hpp"
#include "safetensors/slice.hpp"
#include "safetensors/tensor_view.hpp"

namespace safetensors {

/// How tensor bytes are brought into memory.
enum class Backend : std::uint8_t {
  kMmap,    ///< mapped: no copy, and each page is read when it is first touched
  kPread,   ///< read into a buffer of each tensor, by several threads
  kAuto,    ///< kMmap on local file systems. On network file systems, where each page fault is a
            ///< network round trip: kMmap after get_tensors() or warm() has filled the page cache,
            ///< or kPread if the file takes more than 90 % of the available memory
  kDirect,  ///< like kPread, but past the page cache: for files that are read once. Linux only
  kSource,  ///< the ByteSource that the SafeOpen was made from. Not an option for files
};

/// Options for opening a file.
struct OpenOptions {
  Backend backend = Backend::kMmap;
  /// Set it if the tensors go to a device: the file is read once and never mapped. kMmap and kAuto
  /// then mean kPread, or kDirect for a file that the page cache has no room to keep.
  bool is_for_device = false;
  /// Unset it in programs that open more files than they may have descriptors. With kPread and
  /// kDirect, each call that reads then opens the file again by its path, and throws Error
  /// kFileChanged if the path names another file now or the file was written to. A file opened by a
  /// descriptor is always kept open.
  bool keeps_file_open = true;
};

/// Opens a file as a source that reads it by position: for checked_source(), or for reads of whole
/// files. Backend::kDirect reads past the page cache; others mean kPread.
///
/// Throws: what SafeOpen's constructor for paths throws, but nothing about the content.
[[nodiscard]] SAFETENSORS_API std::shared_ptr<const ByteSource> open_source(
    const std::filesystem::path& path, OpenOptions options = {});

/// A tensor to be read, or parts of one, and the caller's memory that receives it.
struct TensorRead {
  const TensorInfo* info;   ///< an entry of the file that is read
  std::span<std::byte> to;  ///< info->nbytes() bytes, or as many as `runs` take
  /// The parts to read, and where each goes from `to` on. Empty: the whole tensor.
  ///
  /// Requires: no two runs go to the same bytes.
  std::span<const ByteRuns> runs{};
};

/// A file open for reading. Cheap to copy: copies share the file.
///
/// A function that takes a TensorInfo takes an entry of this file. It throws Error kInvalidArgument
/// for an entry whose bytes lie outside this file.
///
/// Safe for untrusted input: opening checks all of the header, and no function reads outside the
///   file, whatever the header says. A file that another process truncates needs Backend::kPread.
/// Thread safety: immutable; all members may be called from many threads at once.
/// Lifetime: TensorViews keep what they need and outlive the SafeOpen. Names, entries and metadata
///   are valid while the SafeOpen or a copy of it lives. A moved-from SafeOpen may only be
///   destroyed or assigned to.
class SAFETENSORS_API SafeOpen {
 public:
  /// Opens and validates a file, and maps it unless `options` say otherwise. Reads the header and
  /// no tensor data.
  ///
  /// Throws: Error kIo (os_error() says why), kNotRegularFile, or kInvalidArgument (the path
  ///   contains a NUL); and what Header::parse throws, with texts that begin "Error while
  ///   deserializing header: " and name the file.
  explicit SafeOpen(const std::filesystem::path& path, OpenOptions options = {});
  /// Opens the file behind a descriptor (on Windows: a C run-time descriptor). `label` names the
  /// file in errors.
  ///
  /// Throws: what the constructor for paths throws.
  /// Lifetime: the caller keeps the descriptor and may close it after the call.
  SafeOpen(int descriptor, const std::filesystem::path& label, OpenOptions options = {});

  /// Opens a file that `source` reads, such as one in memory (MemorySource) or on a server. `label`
  /// names it in errors, and is what path() returns. Without a label errors name no file, and their
  /// texts begin "Error while deserializing: ".
  ///
  /// Tensors of a source in memory are read-only views of its bytes. From another source, each
  /// tensor is read when it is requested, as with Backend::kPread.
  ///
  /// Throws: Error kInvalidArgument if `source` is null; what read_at and Header::parse throw.
  /// Lifetime: shares `source`, as do views of its memory.
  explicit SafeOpen(std::shared_ptr<const ByteSource> source,
                    const std::filesystem::path& label = {});

  /// Returns the header. To iterate over all entries:
  /// `for (const TensorInfo& info : file.header().tensors())`.
  [[nodiscard]] const Header& header() const& noexcept;
  const Header& header() const&& = delete;
  /// Returns the metadata's key and value pairs in the header's order; none if it has no metadata.
  [[nodiscard]] std::span<const Header::MetadataItem> metadata() const& noexcept {
    return header().metadata();
  }
  std::span<const Header::MetadataItem> metadata() const&& = delete;
  /// Returns the path, or the label, that the file was opened with.
  [[nodiscard]] const std::filesystem::path& path() const& noexcept;
  const std::filesystem::path& path() const&& = delete;
  /// Returns the backend in use, never kAuto. It is kPread also if the system refused to map the
  /// file, or to read it past the page cache.
  [[nodiscard]] Backend backend() const noexcept;
  /// Returns the mapping of the whole file, which the views share; nullptr unless backend() is
  /// kMmap.
  [[nodiscard]] std::shared_ptr<const MappedFile> mapping() const noexcept;
  /// Returns the whole file as a source for bulk reads (`Load`, `read_all`). With kMmap, reading it
  /// opens the file again by its path; if the path names another file by then, it copies from the
  /// mapping.
  ///
  /// Lifetime: the source outlives the SafeOpen.
  [[nodiscard]] std::shared_ptr<const ByteSource> source() const;
  /// Returns the offset of the tensor's first byte in the file.
  [[nodiscard]] std::uint64_t position(const TensorInfo& info) const;

  /// Returns the length of the header in bytes, without the kLengthSize bytes before it.
  [[nodiscard]] std::uint64_t header_nbytes() const noexcept;
  /// Returns the offset of the data section in the file: the end of the header.
  [[nodiscard]] std::uint64_t data_offset() const noexcept;
  /// Returns the header's JSON exactly as the file has it: header_nbytes() bytes, with padding
  /// spaces, nothing decoded. It is not kept in memory: each call reads it from the file again.
  ///
  /// The text is not checked: if another process has overwritten the file in place, it may differ
  /// from header(), which was checked when the file was opened.
  ///
  /// Throws: Error kIo, kFileChanged (the file has been truncated, or its header has another length
  ///   now), or std::bad_alloc.
  [[nodiscard]] std::string header_json() const;

  /// Returns all names, sorted by bytes.
  [[nodiscard]] std::vector<std::string_view> keys() const&;
  std::vector<std::string_view> keys() const&& = delete;
  /// Returns the entry with this name; nullptr if there is none.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const& noexcept;
  const TensorInfo* find(std::string_view name) const&& = delete;
  /// Returns the entry with this name. Throws: Error kTensorNotFound.
  [[nodiscard]] const TensorInfo& at(std::string_view name) const&;
  const TensorInfo& at(std::string_view name) const&& = delete;

  /// Returns a tensor. With kMmap it is a view of the mapped pages, with kPread it is read into a
  /// buffer.
  ///
  /// Throws: Error kTensorNotFound, kIo, kFileChanged, or kOutOfMemory; what `interrupt` throws.
  [[nodiscard]] TensorView get_tensor(std::string_view name) const;
  [[nodiscard]] TensorView get_tensor(const TensorInfo& info,
                                      const Interrupt& interrupt = {}) const;
  /// Returns all tensors, sorted by offset. With kPread they are read together, in parallel.
  ///
  /// Throws: Error kIo, kFileChanged, or kOutOfMemory; what `interrupt` throws.
  [[nodiscard]] std::vector<TensorView> get_tensors(const Interrupt& interrupt = {}) const;
  /// Brings a file that kAuto mapped on a network file system into the page cache, with several
  /// threads, unless 90 % of it are cached already. Does nothing for other files.
  ///
  /// Throws: Error kIo or kFileChanged; what `interrupt` throws.
  void warm(const Interrupt& interrupt = {}) const;

  /// Announces that most of the file will be used soon. With kMmap on Linux, a background thread
  /// then reads ahead of the pages that the process touches, until the last view is destroyed. It
  /// starts once the process has touched an eighth of the file (at least 4, at most 256 MiB). Does
  /// nothing with other backends. Never fails.
  void read_ahead() const noexcept;

  /// Returns a part of a tensor; `{Index::slice(10, 20)}` selects ten rows. With kMmap, a part
  /// whose bytes are contiguous is a view of the mapped pages. Any other part is a copy, for which
  /// only the part is read, and gaps of up to 64 KiB within it.
  ///
  /// Throws: what get_tensor and select_part throw. The texts name the tensor and the file.
  [[nodiscard]] TensorView get_slice(std::string_view name, Indices indices) const;
  [[nodiscard]] TensorView get_slice(const TensorInfo& info, Indices indices,
                                     const Interrupt& interrupt = {}) const;

  /// Returns which bytes of the tensor `indices` select. Reads nothing.
  ///
  /// Throws: what the free function select_part throws, with texts that also name the file.
  [[nodiscard]] Part select_part(const TensorInfo& info, Indices indices) const;

  /// Copies a tensor's elements to a vector, array or span, in this machine's byte order, with
  /// several threads if there is enough to copy.
  ///
  /// Throws: Error kTensorNotFound, kIo, or kFileChanged; kInvalidArgument if the element type of
  ///   `to` does not fit the dtype (see `holds`), or the number of elements differs.
  template <ElementRange Range>
  void copy_to(std::string_view name, Range&& to, const Interrupt& interrupt = {}) const {
    const TensorInfo& info = at(name);
    const std::span values(to);
    detail::check_type<typename decltype(values)::element_type>(info, &path());
    read(info, std::as_writable_bytes(values), interrupt);
    detail::to_values(values);
  }
  /// Copies the elements of a part of a tensor. Throws: what copy_to and select_part throw.
  template <ElementRange Range>
  void copy_slice_to(std::string_view name, Indices indices, Range&& to,
                     const Interrupt& interrupt = {}) const {
    const TensorInfo& info = at(name);
    const std::span values(to);
    detail::check_type<typename decltype(values)::element_type>(info, &path());
    read(info, select_part(info, indices).runs, std::as_writable_bytes(values), interrupt);
    detail::to_values(values);
  }

  /// Copies the tensor's bytes to `to`, with several threads if there is enough to copy.
  ///
  /// Throws: Error kInvalidArgument if `to` has not info.nbytes() bytes; kIo; kFileChanged if the
  ///   file has been truncated (with kMmap, this is noticed on Linux 5.14 or later, by whole
  ///   pages); what `interrupt` throws. Then the contents of `to` are unspecified.
  void read(const TensorInfo& info, std::span<std::byte> to, const Interrupt& interrupt = {}) const;
  /// Copies many tensors. Faster than one by one: tensors that are adjacent in the file are read
  /// together, and several threads share the work. Parts (TensorRead::runs) are read one after
  /// another. Throws as read of one tensor does.
  void read(std::span<const TensorRead> reads, const Interrupt& interrupt = {}) const;
  /// Copies parts of a tensor to where they say, from the first byte of `to` on. `to` ends with the
  /// last of them. With kPread, runs at most 64 KiB apart are read together with the gaps. Throws
  /// as read of one tensor does.
  ///
  /// Requires: no two runs go to the same bytes.
  void read(const TensorInfo& info, std::span<const ByteRuns> runs, std::span<std::byte> to,
            const Interrupt& interrupt = {}) const;
  /// Copies one part of a tensor.
  void read(const TensorInfo& info, const ByteRuns& runs, std::span<std::byte> to,
            const Interrupt& interrupt = {}) const {
    read(info, {&runs, 1}, to, interrupt);
  }

 private:
  class File;
  std::shared_ptr<const File> file_;
};

}  // namespace safetensors
