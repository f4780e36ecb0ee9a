// _write_with_header: writes a file that has the data of another one.
#include <algorithm>
#include <string>
#include <utility>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "open_file.hpp"
#include "register.hpp"
#include "save_target.hpp"
#include "write_plan.hpp"
#include "write_sums.hpp"

namespace safetensors::python {
namespace {

/// Throws Error kInvalidTensorInfo unless both headers describe the same tensors, but for names.
void check_same_tensors(const Header& old, const Header& now) {
  const auto is_same = [](const TensorInfo& a, const TensorInfo& b) {
    return a.begin == b.begin && a.end == b.end && a.dtype == b.dtype &&
           std::ranges::equal(a.shape, b.shape);
  };
  if (!std::ranges::equal(old.tensors(), now.tensors(), is_same)) {
    fail(ErrorCode::kInvalidTensorInfo, "the new header does not describe the same tensors");
  }
}

/// Returns the bytes before the data: the header's length, and the header.
std::string prologue_of(std::span<const std::byte> header) {
  std::string prologue;
  for (std::size_t i = 0; i < kLengthSize; ++i) {
    prologue += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  prologue.append(reinterpret_cast<const char*>(header.data()), header.size());
  return prologue;
}

void write_with_header(py::handle path, const Handle& handle, py::handle header, bool fsync,
                       py::object progress, py::handle rights_of, py::handle given_sums) {
  const SaveTarget target(path, "path");
  const std::filesystem::path like = optional_path_of(rights_of, "rights_of");
  const std::shared_ptr<const OpenFile> opened = handle.file();
  const SafeOpen& file = opened->file();
  const BufferView json(header, "header");
  WriterOptions options{
      .fsync = fsync, .interrupt = python_interrupt(), .progress = python_progress(progress)};
  detail::WriteSums sums = to_write_sums(given_sums);
  saving(target.path(), [&] {
    const GilRelease release;
    const std::shared_ptr<const ByteSource> source = file.source();
    const std::uint64_t begin = file.data_offset();
    const std::uint64_t nbytes = source->size() - begin;
    check_same_tensors(file.header(), Header::parse(json.bytes(), nbytes));
    FileWriter writer(target.make_sink(like, python_interrupt(), sums.before_rename(target.path())),
                      plan_data(prologue_of(json.bytes()), nbytes), std::move(options));
    const TensorCopy data{0, begin};
    writer.copy(*source, {&data, 1});
    writer.commit();
    sums.commit(fsync);
  });
}

}  // namespace

void register_rewrite(py::module_& module) {
  define(module, "_write_with_header", &write_with_header, py::arg("path"), py::arg("file"),
         py::arg("header"), py::arg("fsync"), py::arg("progress") = py::none(),
         py::arg("rights_of") = py::none(), py::arg("sums") = py::none(),
         "_write_with_header(path, file, header, fsync, progress=None, rights_of=None, sums=None)\n"
         "--\n\n"
         "Writes a file with the data of an open one. The header describes the same tensors, but\n"
         "for their names.");
}

}  // namespace safetensors::python
