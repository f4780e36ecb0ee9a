// Saving in the background: tensors are copied, and the file is written meanwhile.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/save.hpp"

namespace safetensors {

namespace detail {
class WriteSums;
}

/// A CUDA device, and the stream whose work comes before copies from it.
struct CudaStream {
  int device = 0;          ///< its index, as for Device::cuda()
  void* stream = nullptr;  ///< a CUstream; nullptr for the default stream

  friend auto operator<=>(const CudaStream&, const CudaStream&) = default;
};

/// Where the bytes of a tensor are that is saved in the background: in the host's memory, unless
/// one of these is given.
struct StagedPlace {
  /// Copies the bytes from `begin` on. May throw.
  std::function<void(std::uint64_t begin, std::span<std::byte> to)> read = {};
  /// The device on which TensorData::bytes is an address.
  std::optional<CudaStream> device = {};
};

/// A save whose tensors one thread copies, and another one writes to the file. When stage() has
/// returned, the tensors may change.
///
///     StagedSave save(tensors, "model.safetensors");
///     std::thread writer([&] { save.write(); });  // keep what it throws
///     save.stage();
///     writer.join();
///
/// The copies are chunks of 16 MiB, which all saves of the process share, and which are kept for
/// the next save. If a save may not have as many as the file has, stage() waits until write() has
/// written some. A file is written as save_file() does, but one that cannot be replaced is not
/// overwritten.
///
/// Thread safety: stage(), write(), stop() and nbytes_done() may be called at the same time, the
///   first two once each.
/// Lifetime: the tensors must stay until stage() has returned.
class SAFETENSORS_API StagedSave {
 public:
  /// Plans the file. The interrupt of the options is for write(), their progress is not used.
  ///
  /// Throws: what plan_layout throws; kInvalidArgument as save_file().
  StagedSave(std::span<const TensorData> tensors, const std::filesystem::path& path,
             const Metadata* metadata = nullptr, const SaveOptions& options = {});
  /// The same, with sums that the caller made.
  StagedSave(std::span<const TensorData> tensors, const std::filesystem::path& path,
             const Metadata* metadata, const SaveOptions& options,
             std::unique_ptr<detail::WriteSums> sums);
  StagedSave(const StagedSave&) = delete;
  StagedSave& operator=(const StagedSave&) = delete;
  /// Ends the save, unless write() has completed it.
  /// Requires: no other call is under way.
  ~StagedSave();

  /// Copies the tensors. Returns when all are copied, or the save has ended. If it throws, the save
  /// is stopped.
  ///
  /// places: of each tensor, in the order given to the constructor; empty if all are in memory.
  /// budget_nbytes: the limit of the memory of all saves; by default a quarter of what is
  ///   available. One save may always have one chunk.
  /// Throws: what `read`, `interrupt` and copies from devices throw; Error kOutOfMemory;
  ///   kInvalidArgument for another number of places than of tensors.
  void stage(std::span<const StagedPlace> places = {},
             std::optional<std::uint64_t> budget_nbytes = {}, const Interrupt& interrupt = {});
  /// Writes the file, as the copies come.
  ///
  /// Throws: what save_file() throws; kWriterClosed after stop().
  void write();
  /// Copies the tensors and writes the file by turns, where no other thread can be started.
  void write_here(std::span<const StagedPlace> places = {},
                  std::optional<std::uint64_t> budget_nbytes = {}, const Interrupt& interrupt = {});
  /// Makes write() throw, or never begin, and stage() return.
  void stop();

  /// Returns how many bytes of tensors were written.
  [[nodiscard]] std::uint64_t nbytes_done() const noexcept;

 private:
  class State;
  std::unique_ptr<State> state_;
};

/// The memory of all saves in the background.
struct SaveMemoryUse {
  std::size_t used_nbytes = 0;  ///< of saves that are under way
  std::size_t kept_nbytes = 0;  ///< kept for later saves
};
[[nodiscard]] SAFETENSORS_API SaveMemoryUse save_memory_use();
/// Frees the memory that no save uses. Returns how many bytes it had.
SAFETENSORS_API std::size_t release_save_memory();

}  // namespace safetensors
