// A file that is changed in place (docs/format.md, "Changes in place").
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "io/posix/lease.hpp"
#include "safetensors/buffer.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/detail/in_place.hpp"
#include "safetensors/safe_open.hpp"
#include "write/journal_files.hpp"

namespace safetensors {

/// A file that is open to be changed, and locked until the object is destroyed.
///
/// The mark is the highest bit of the header's length: no reader takes a file that has it for a
/// valid one. Here it is read as if it were not there.
///
/// Members throw Error kIo, with the path of the file.
class InPlaceFile {
 public:
  /// Returns nothing if there is no file of this name.
  ///
  /// Throws: Error kInvalidArgument if the file has several names, or another process changes it;
  ///   kNotRegularFile, also for a link; what SafeOpen and `before_open` throw.
  [[nodiscard]] static std::optional<InPlaceFile> open(const detail::Folder& folder,
                                                       const std::string& name,
                                                       const detail::BeforeOpen& before_open);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return tensors_.path(); }
  /// Returns the header, and reads tensors.
  [[nodiscard]] const SafeOpen& tensors() const noexcept { return tensors_; }
  [[nodiscard]] const HeaderIdentity& identity() const noexcept { return identity_; }

  [[nodiscard]] bool is_marked() const;
  void set_mark(bool is_marked) const;
  [[nodiscard]] Buffer read(const TensorInfo& tensor) const;
  /// Writes those pieces of a tensor that differ. Requires: both have the bytes of the tensor.
  void write(const TensorInfo& tensor, std::span<const std::byte> old,
             std::span<const std::byte> now) const;
  void flush() const;

  /// Takes a lease, which the object keeps.
  /// Throws: Error kInvalidArgument if the file is in use, or the system does not tell.
  void take_lease();
  /// Throws: Error kInvalidArgument if another process has opened the file since take_lease().
  void check_lease() const;

 private:
  class Unmarked;
  InPlaceFile(std::string name, std::shared_ptr<const Unmarked> file, SafeOpen tensors);

  std::string name_;
  std::shared_ptr<const Unmarked> file_;
  SafeOpen tensors_;  // shares file_
  HeaderIdentity identity_;
  std::optional<io::Lease> lease_;  // last: given back before the file is closed
};

/// Throws Error kInvalidArgument: the file is not changed in place.
[[noreturn]] void refuse_in_place(const std::filesystem::path& path, const std::string& reason);

}  // namespace safetensors
