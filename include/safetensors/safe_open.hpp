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
#include "safetensors/export.hpp"
#include "safetensors/header.hpp"
#include "safetensors/mapped_file.hpp"
#include "safetensors/slice.hpp"
#include "safetensors/tensor_view.hpp"

namespace safetensors {

/// How tensor bytes come into memory.
enum class Backend : std::uint8_t {
  kMmap,   ///< the file's own pages, lazily: no copy, nothing read until touched
  kPread,  ///< read into memory of the tensor's own, by several threads
};

struct OpenOptions {
  Backend backend = Backend::kMmap;
};

/// A file open for reading. Immutable and cheap to copy: copies share the file. All members are
/// thread safe. What it hands out stays valid after it is gone.
class SAFETENSORS_API SafeOpen {
 public:
  /// Opens, maps and validates. Reads the header and no tensor data.
  /// Throws Error: kIo (os_error() says why), kNotRegularFile, and whatever Header::parse throws
  /// with texts that begin "Error while deserializing header: " and name the file.
  explicit SafeOpen(const std::filesystem::path& path, OpenOptions options = {});
  /// The same for an open descriptor (on Windows: a C run-time descriptor), which stays the
  /// caller's. `label` names the file in errors.
  SafeOpen(int descriptor, const std::filesystem::path& label, OpenOptions options = {});

  [[nodiscard]] const Header& header() const& noexcept;
  const Header& header() const&& = delete;
  [[nodiscard]] const std::filesystem::path& path() const& noexcept;
  const std::filesystem::path& path() const&& = delete;
  /// The backend in use: kPread also when mapping was asked for and the system refused it.
  [[nodiscard]] Backend backend() const noexcept;
  /// The pages of the whole file, which the views share; nullptr by kPread.
  [[nodiscard]] std::shared_ptr<const MappedFile> mapping() const noexcept;

  /// All names, sorted. Views into the file's header: valid while a copy of this lives.
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
  [[nodiscard]] std::vector<TensorView> get_tensors(const Interrupt& interrupt = {}) const;

  /// Copies the tensor's bytes to `to`, which has info.nbytes() bytes.
  void read(const TensorInfo& info, std::span<std::byte> to, const Interrupt& interrupt = {}) const;
  /// Copies the selected bytes to `to`, which has runs.nbytes() bytes. By kPread a run is read
  /// alone when the gap to the next is over 64 KiB, else together with it.
  void read(const TensorInfo& info, const ByteRuns& runs, std::span<std::byte> to,
            const Interrupt& interrupt = {}) const;

 private:
  class File;
  std::shared_ptr<const File> file_;
};

}  // namespace safetensors
