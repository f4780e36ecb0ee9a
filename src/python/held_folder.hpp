// _Folder: a folder whose files have names that the package chose.
#pragma once

#if !defined(_WIN32)

#include <filesystem>
#include <string>

#include "errors.hpp"
#include "gil.hpp"
#include "python.hpp"
#include "safetensors/detail/folder.hpp"

namespace safetensors::python {

/// A folder; of a private one, its name in its parent.
struct HeldFolder {
  detail::Folder folder;
  std::string name;
};

/// Runs `work` without the GIL. Its errors are SafetensorError and, if they are from the system,
/// OSError. `path` names the file in errors that name none.
template <typename Work>
auto in_folder(const std::filesystem::path& path, const Work& work) {
  try {
    const GilRelease release;
    return work();
  } catch (const Error& error) {
    // No error of the system: what is not followed, and what another process saves.
    const bool is_of_file =
        error.code() == ErrorCode::kNotRegularFile || error.code() == ErrorCode::kIo;
    if (is_of_file && error.os_error() == 0) raise_plain(error);
    raise_unsaved(error, error.path().empty() ? path : error.path());
  }
}

template <typename Work>
auto in_folder(const HeldFolder& held, const Work& work) {
  return in_folder(held.folder.path(), work);
}

}  // namespace safetensors::python

#endif
