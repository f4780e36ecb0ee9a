// Changes of tensors in place. For this project's own bindings: it may change at any time.
#pragma once

#if !defined(_WIN32)

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/buffer.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/export.hpp"
#include "safetensors/safe_open.hpp"

namespace safetensors::detail {

/// Called with the path of a file before it is opened to be changed in place.
using BeforeOpen = std::function<void(const std::filesystem::path& path)>;

/// Options of InPlaceChange.
struct InPlaceOptions {
  /// Change files that may be open or mapped, by this program or others.
  bool shared = false;
  BeforeOpen before_open = {};
  /// Called until the first file is marked. After that the change is completed.
  Interrupt interrupt = {};
};

/// Changes tensors of files of one folder in place, so that a crash at any time loses nothing:
/// docs/format.md, "Changes in place", describes the steps.
///
///     InPlaceChange change(folder, {"model.safetensors"}, "model.safetensors");
///     change.write("weight", bytes);
///     change.commit();
///
/// The files are locked until the object is destroyed. Before commit() nothing in them changes: the
/// destructor removes what was prepared, except in a forked child.
///
/// Its errors name the file and the tensor. Thread safety: one thread at a time calls members.
class SAFETENSORS_API InPlaceChange {
 public:
  /// Opens the files. recover_changes() of the same names comes first.
  ///
  /// name: what is changed, for the journal's name: one of the files, or an index.
  /// Throws: Error kInvalidArgument if a file has several names, another process changes it, an
  ///   earlier change of it has not ended, or it is in use and may not be shared; kNotRegularFile,
  ///   also for a link; kDuplicateName if two files have the same tensor; kIo; what SafeOpen and
  ///   `before_open` throw.
  InPlaceChange(const Folder& folder, std::span<const std::string> files, std::string name,
                InPlaceOptions options = {});
  InPlaceChange(const InPlaceChange&) = delete;
  InPlaceChange& operator=(const InPlaceChange&) = delete;
  ~InPlaceChange();

  [[nodiscard]] std::size_t file_count() const noexcept;
  /// Returns the tensors of a file as they are. Lifetime: this object's.
  [[nodiscard]] const SafeOpen& file(std::size_t index) const noexcept;
  /// Returns the entry of a tensor in the header of its file. Throws: Error kTensorNotFound.
  [[nodiscard]] const TensorInfo& at(std::string_view tensor) const;
  /// Copies the bytes of a tensor as they are to `to`.
  ///
  /// Throws: Error kTensorNotFound; kInvalidArgument if `to` has another size; kIo.
  void read(std::string_view tensor, std::span<std::byte> to) const;
  /// Prepares the new bytes of a tensor, once for each.
  ///
  /// Throws: Error kTensorNotFound; kInvalidArgument if the bytes are not as many as the tensor
  ///   has; kWrittenTwice; kIo; what the interrupt throws.
  void write(std::string_view tensor, std::span<const std::byte> bytes);
  /// Changes the files together, unless the bytes are those that they have. Then the object has
  /// nothing more to change.
  ///
  /// Throws: Error kInvalidArgument if another process has opened a file meanwhile; kIo; what the
  ///   interrupt throws. After these, the files are as before, or recover() completes the change.
  void commit();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace safetensors::detail

#endif
