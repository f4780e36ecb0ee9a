// How a file is saved, from Python's SaveArguments (_saving/arguments.py), which only this code
// reads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "python.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/layout.hpp"
#include "safetensors/save.hpp"
#include "safetensors/writer.hpp"

namespace safetensors::python {

/// The arguments of a save.
///
/// `make_sums` of the options is None, for no sums, or a tuple (path, make). `make(temporary,
/// digests)` gets the path of the complete file, and a dict of name to (XXH3-128 in hexadecimal
/// digits, bytes of the blocks), or to None if the tensor was not hashed; or None if no tensor was
/// added. It returns the content of the sums, which are written to `path`, or None.
///
/// Lifetime: made and destroyed with the GIL, after all that save_options() and writer_options()
/// have returned. Members need no GIL.
struct SaveArguments {
  /// Without sums.
  SaveArguments(py::handle metadata, bool fsync, py::object progress);
  explicit SaveArguments(py::handle options);

  [[nodiscard]] const Metadata* metadata_or_null() const noexcept {
    return metadata ? &*metadata : nullptr;
  }
  [[nodiscard]] SaveOptions save_options() const;
  [[nodiscard]] WriterOptions writer_options() const;

  std::optional<Metadata> metadata;
  bool fsync = false;
  py::object progress;
  std::unique_ptr<detail::WriteSums> sums;  ///< not null
  Layout layout = Layout::kCanonical;
  std::optional<std::uint64_t> budget_nbytes;
  std::uint64_t data_begin = 0;
};

}  // namespace safetensors::python
