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

/// How tensor bytes come into memory.
enum class Backend : std::uint8_t {
  kMmap,    ///< the file's own pages, lazily: no copy, nothing read until touched
  kPread,   ///< read into memory of the tensor's own, by several threads
  kAuto,    ///< kMmap on local file systems. On network file systems, where each page fault is a
            ///< journey: kMmap, with the file brought into the page cache by get_tensors() and
            ///< warm(), or kPread when it is too large for that
  kDirect,  ///< as kPread, past the page cache: for files that are read once. Linux
  kSource,  ///< from the ByteSource that the SafeOpen was made from; no option for files
};

struct OpenOptions {
  Backend backend = Backend::kMmap;
  /// The tensors go to a device: the file is read once and never mapped. kMmap and kAuto then mean
  /// kPread, or kDirect for a file that the page cache could not keep.
  bool is_for_device = false;
  /// False, for programs with more files than descriptors: by kPread and kDirect each call that
  /// reads opens the file again, by its path, and throws Error kFileChanged when that is another
  /// file by now or the file was written to. A file opened by a descriptor is always kept open.
  bool keeps_file_open = true;
};

/// A tensor to be read, and the memory of the caller's that it goes to.
struct TensorRead {
  const TensorInfo* info;   ///< of the file that is asked
  std::span<std::byte> to;  ///< info->nbytes() bytes
};

/// A file open for reading. Immutable and cheap to copy: copies share the file. All members are
/// thread safe. The TensorViews it hands out stay valid after it is gone; names, entries and
/// metadata are valid while a copy of it lives. A function that takes an entry (TensorInfo) takes
/// one of this file's, and throws Error kInvalidArgument for one whose bytes this file lacks.
/// A SafeOpen that was moved from has no file: it may only be destroyed or assigned to.
class SAFETENSORS_API SafeOpen {
 public:
  /// Opens, maps and validates. Reads the header and no tensor data.
  /// Throws Error: kIo (os_error() says why), kNotRegularFile, kInvalidArgument (a NUL in the
  /// path), and whatever Header::parse throws with texts that begin "Error while deserializing
  /// header: " and name the file.
  explicit SafeOpen(const std::filesystem::path& path, OpenOptions options = {});
  /// The same for an open descriptor (on Windows: a C run-time descriptor), which stays the
  /// caller's. `label` names the file in errors.
  SafeOpen(int descriptor, const std::filesystem::path& label, OpenOptions options = {});

  /// The same for a file that is no file of this system: in memory (MemorySource), or wherever
  /// `source` reads it from. `label` names it in errors and is what path() returns. Without a label
  /// errors name no file, and begin "Error while deserializing: ".
  /// Tensors of a source in memory are read-only views of its bytes. From another source each
  /// tensor is read when it is asked for, as by Backend::kPread.
  /// Throws Error: what read_at and Header::parse throw, and kInvalidArgument if `source` is null.
  /// Lifetime: this, its copies and its views of memory share `source`.
  explicit SafeOpen(std::shared_ptr<const ByteSource> source,
                    const std::filesystem::path& label = {});

  /// All entries: to go through them, `for (const TensorInfo& info : file.header().tensors())`.
  [[nodiscard]] const Header& header() const& noexcept;
  const Header& header() const&& = delete;
  /// The metadata's key and value pairs, in the header's order; none when it has no metadata.
  [[nodiscard]] std::span<const Header::MetadataItem> metadata() const& noexcept {
    return header().metadata();
  }
  std::span<const Header::MetadataItem> metadata() const&& = delete;
  /// What it was opened by.
  [[nodiscard]] const std::filesystem::path& path() const& noexcept;
  const std::filesystem::path& path() const&& = delete;
  /// The backend in use, never kAuto: kPread also when the system refused to map the file, or to
  /// read it past its page cache.
  [[nodiscard]] Backend backend() const noexcept;
  /// The pages of the whole file, which the views share; nullptr unless by kMmap.
  [[nodiscard]] std::shared_ptr<const MappedFile> mapping() const noexcept;
  /// The whole file, to be read in bulk (`Load`, `read_all`); valid after this is gone. By kMmap
  /// it is opened anew when it is read, or, where another has its name by then, copied out of the
  /// mapping.
  [[nodiscard]] std::shared_ptr<const ByteSource> source() const;
  /// Where the tensor's first byte lies in the file.
  [[nodiscard]] std::uint64_t position(const TensorInfo& info) const;

  /// The length of the header in bytes, without the kLengthSize bytes before it.
  [[nodiscard]] std::uint64_t header_nbytes() const noexcept;
  /// Where the data section begins in the file, in bytes: after the header.
  [[nodiscard]] std::uint64_t data_offset() const noexcept;
  /// Returns the header's JSON as the file has it: header_nbytes() bytes, with the spaces that pad
  /// it, and nothing decoded. It is not kept in memory: each call reads it from the file again.
  ///
  /// header() is what was checked when the file was opened. If another process has overwritten the
  /// file in place since, the text may say something else: treat it as untrusted.
  ///
  /// Throws: Error kIo, kFileChanged (the file was cut short, or its header has another length by
  ///   now), or std::bad_alloc.
  /// Thread safety: may be called from many threads at once.
  [[nodiscard]] std::string header_json() const;

  /// All names, sorted by bytes.
  [[nodiscard]] std::vector<std::string_view> keys() const&;
  std::vector<std::string_view> keys() const&& = delete;
  /// The entry of that name; nullptr when there is none.
  [[nodiscard]] const TensorInfo* find(std::string_view name) const& noexcept;
  const TensorInfo* find(std::string_view name) const&& = delete;
  /// The entry of that name. Throws Error kTensorNotFound.
  [[nodiscard]] const TensorInfo& at(std::string_view name) const&;
  const TensorInfo& at(std::string_view name) const&& = delete;

  /// The tensor of that name; by kMmap a view of the file's pages, by kPread read into memory of
  /// its own. Throws Error: kTensorNotFound, kIo, kFileChanged, kOutOfMemory.
  [[nodiscard]] TensorView get_tensor(std::string_view name) const;
  [[nodiscard]] TensorView get_tensor(const TensorInfo& info,
                                      const Interrupt& interrupt = {}) const;
  /// All tensors, by offset. By kPread they are read together, in parallel.
  /// Throws Error: kIo, kFileChanged, kOutOfMemory.
  [[nodiscard]] std::vector<TensorView> get_tensors(const Interrupt& interrupt = {}) const;
  /// Brings a file that kAuto mapped on a network file system into the page cache, by several
  /// threads, unless it is there. Else does nothing. Throws Error: kIo, kFileChanged.
  void warm(const Interrupt& interrupt = {}) const;

  /// For a caller who is about to use most of a file that is not in the page cache: by kMmap on
  /// Linux, a background thread reads ahead while the process touches pages, and stops when the
  /// last view is gone. Before an eighth of the file is touched (4 to 256 MiB), and by other
  /// backends, nothing is read. Never fails.
  void read_ahead() const noexcept;

  /// A part of a tensor, as `{Index::slice(10, 20)}` for ten rows. By kMmap a view of the file's
  /// pages where the part's bytes stand together; else a copy, in memory of its own, for which
  /// nothing but the part is read (and gaps of up to 64 KiB within it).
  /// Throws Error: what get_tensor and select_part throw; the texts name tensor and file.
  [[nodiscard]] TensorView get_slice(std::string_view name, Indices indices) const;
  [[nodiscard]] TensorView get_slice(const TensorInfo& info, Indices indices,
                                     const Interrupt& interrupt = {}) const;

  /// The part of the tensor that `indices` select, as the free function of this name finds it;
  /// texts of errors name the file too. Reads nothing.
  [[nodiscard]] Part select_part(const TensorInfo& info, Indices indices) const;

  /// Copies a tensor's elements to a vector, array or span of the caller's, in parallel, as this
  /// machine's values. Throws Error: kTensorNotFound, kIo, kFileChanged, and kInvalidArgument when
  /// its elements are not of a type that fits (`holds`), or are more or fewer.
  template <ElementRange Range>
  void copy_to(std::string_view name, Range&& to, const Interrupt& interrupt = {}) const {
    const TensorInfo& info = at(name);
    const std::span values(to);
    detail::check_type<typename decltype(values)::element_type>(info);
    read(info, std::as_writable_bytes(values), interrupt);
    detail::to_values(values);
  }
  /// The same for a part of it. Throws also what select_part throws.
  template <ElementRange Range>
  void copy_slice_to(std::string_view name, Indices indices, Range&& to,
                     const Interrupt& interrupt = {}) const {
    const TensorInfo& info = at(name);
    const std::span values(to);
    detail::check_type<typename decltype(values)::element_type>(info);
    read(info, select_part(info, indices).runs, std::as_writable_bytes(values), interrupt);
    detail::to_values(values);
  }

  /// Copies the tensor's bytes to `to`, which has info.nbytes() bytes, by several threads when
  /// there is enough to copy. Throws Error: kInvalidArgument (another size), kIo, kFileChanged
  /// (by kMmap on Linux 5.14 or later, by whole pages); then the contents of `to` are unspecified.
  void read(const TensorInfo& info, std::span<std::byte> to, const Interrupt& interrupt = {}) const;
  /// The same for many tensors at once, which is faster than one by one: neighbours in the file are
  /// read together, and small tensors by several threads.
  void read(std::span<const TensorRead> reads, const Interrupt& interrupt = {}) const;
  /// Copies the selected bytes to `to`, which has runs.nbytes() bytes. By kPread a run is read
  /// alone when the gap to the next is over 64 KiB, else together with it. Throws as read does.
  void read(const TensorInfo& info, const ByteRuns& runs, std::span<std::byte> to,
            const Interrupt& interrupt = {}) const;

 private:
  class File;
  std::shared_ptr<const File> file_;
};

}  // namespace safetensors
