// Where a file is saved: a path that the caller typed, or a name that the package chose.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "python.hpp"
#include "safetensors/byte_sink.hpp"
#include "safetensors/detail/folder.hpp"

namespace safetensors::python {

/// What Python's Folder.target() returns: the name of a new file in a private folder, and the file
/// whose rights it gets.
struct OwnTarget {
  detail::OwnPlace place;
  std::optional<detail::OwnPlace> like;
};

/// A path, or an OwnTarget. No text is converted to the one or the other, so a name that the
/// package chose cannot be taken for a path, whose links would be followed.
class SaveTarget {
 public:
  /// Converts a path or an OwnTarget. Raises TypeError that names `argument` for other objects, and
  /// throws Error kInvalidArgument for a URL.
  SaveTarget(py::handle object, const char* argument);

  [[nodiscard]] bool is_path() const noexcept { return !own_; }
  /// Returns the path, also of an OwnTarget: for texts.
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Returns make_file_sink() of a path; of an OwnTarget, make_part_sink(), which has its own
  /// rights.
  [[nodiscard]] std::unique_ptr<ByteSink> make_sink(
      const Interrupt& interrupt,
      const std::function<void(const std::filesystem::path&)>& before_rename) const;

 private:
  std::filesystem::path path_;
  std::optional<OwnTarget> own_;
};

}  // namespace safetensors::python
