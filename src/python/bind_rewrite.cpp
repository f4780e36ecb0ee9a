// _write_with_header: writes a file that has the data of another one.
#include <algorithm>
#include <string>
#include <utility>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "open_file.hpp"
#include "register.hpp"

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

/// Returns the plan of a file whose data section is one piece.
LayoutPlan plan_of(std::span<const std::byte> header, std::uint64_t data_nbytes) {
  LayoutPlan plan;
  for (std::size_t i = 0; i < kLengthSize; ++i) {
    plan.prologue += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  }
  plan.prologue.append(reinterpret_cast<const char*>(header.data()), header.size());
  plan.order = {0};
  plan.places = {{plan.prologue.size(), data_nbytes}};
  plan.total_nbytes = plan.prologue.size() + data_nbytes;
  return plan;
}

void write_with_header(py::handle path, const Handle& handle, py::handle header, bool fsync,
                       py::object progress, py::handle rights_of) {
  const std::filesystem::path target = path_of(path, "path");
  const auto like = rights_of.is_none() ? std::filesystem::path() : path_of(rights_of, "rights_of");
  const std::shared_ptr<const OpenFile> opened = handle.file();
  const SafeOpen& file = opened->file();
  const BufferView json(header, "header");
  WriterOptions options{.fsync = fsync, .interrupt = python_interrupt()};
  if (!progress.is_none()) {
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      const GilAcquire gil;
      (void)progress(done, total);
    };
  }
  saving(target, [&] {
    const GilRelease release;
    const std::shared_ptr<const ByteSource> source = file.source();
    const std::uint64_t begin = file.data_offset();
    const std::uint64_t nbytes = source->size() - begin;
    check_same_tensors(file.header(), Header::parse(json.bytes(), nbytes));
    FileWriter writer(make_file_sink(target, like, python_interrupt()),
                      plan_of(json.bytes(), nbytes), std::move(options));
    const TensorCopy data{0, begin};
    writer.copy(*source, {&data, 1});
    writer.commit();
  });
}

}  // namespace

void register_rewrite(py::module_& module) {
  define(module, "_write_with_header", &write_with_header, py::arg("path"), py::arg("file"),
         py::arg("header"), py::arg("fsync"), py::arg("progress") = py::none(),
         py::arg("rights_of") = py::none(),
         "_write_with_header(path, file, header, fsync, progress=None, rights_of=None)\n--\n\n"
         "Writes a file with the data of an open one. The header describes the same tensors, but\n"
         "for their names.");
}

}  // namespace safetensors::python
