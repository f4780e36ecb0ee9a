// _InPlaceChange, and the recovery of changes in place and of saves.
#include "register.hpp"

#if defined(_WIN32)

// Files are not changed in place on Windows, and models of several files are not saved.
void safetensors::python::register_in_place(py::module_&) {}

#else

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "held_folder.hpp"
#include "open_hook.hpp"
#include "safetensors/detail/in_place.hpp"
#include "safetensors/detail/recovery.hpp"

namespace safetensors::python {
namespace {

using detail::Folder;
using detail::InPlaceChange;

/// An InPlaceChange until it is closed, and the folder that its errors name.
class Changing {
 public:
  Changing(const HeldFolder& held, const py::list& files, py::handle name, bool shared)
      : folder_(held.folder.path()),
        change_(in_folder(folder_, [&, its_files = file_names_of(files),
                                    its_name = file_name_of(name), interrupt = python_interrupt()] {
          return std::make_unique<InPlaceChange>(
              held.folder, its_files, its_name,
              detail::InPlaceOptions{
                  .shared = shared, .before_open = announce_change, .interrupt = interrupt});
        })) {}

  /// Returns what `work` returns, which is called with the change, without the GIL.
  template <typename Work>
  auto run(const Work& work) const {
    InPlaceChange& change = open();
    return in_folder(folder_, [&] { return work(change); });
  }

  void close() {
    const GilRelease release;
    change_.reset();
  }

  /// Returns (name, dtype, shape) of each tensor of each file, in the order of their bytes.
  [[nodiscard]] py::list tensors() const {
    const InPlaceChange& change = open();
    py::list files;
    for (std::size_t i = 0; i < change.file_count(); ++i) {
      py::list rows;
      for (const TensorInfo& info : change.file(i).header().tensors()) {
        rows.append(py::make_tuple(to_unicode(info.name), to_str(name(info.dtype)),
                                   py::tuple(to_list(info.shape))));
      }
      files.append(std::move(rows));
    }
    return files;
  }

  [[nodiscard]] py::object read(py::handle tensor) const {
    const std::string its_name(text_of(tensor, "name"));
    const std::uint64_t nbytes =
        run([&](const InPlaceChange& change) { return change.at(its_name).nbytes(); });
    auto bytes = py::reinterpret_steal<py::object>(
        PyByteArray_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(nbytes)));
    if (!bytes) throw py::error_already_set();
    const WritableBuffer to(bytes);
    run([&](const InPlaceChange& change) { change.read(its_name, to.bytes()); });
    return bytes;
  }

  void write(py::handle tensor, py::handle data) const {
    const std::string its_name(text_of(tensor, "name"));
    const BufferView view(data, "data");
    run([&](InPlaceChange& change) { change.write(its_name, view.bytes()); });
  }

 private:
  [[nodiscard]] InPlaceChange& open() const {
    if (!change_) fail(ErrorCode::kWriterClosed, "the change has ended");
    return *change_;
  }

  std::filesystem::path folder_;
  std::unique_ptr<InPlaceChange> change_;
};

py::tuple recover_in(const HeldFolder& held, py::handle file) {
  const std::string name = file_name_of(file);
  const detail::Recovered found =
      in_folder(held, [&] { return detail::recover_in(held.folder, name, announce_change); });
  constexpr const char* kOutcomes[] = {"clean", "rolled back", "rolled forward"};
  return py::make_tuple(kOutcomes[static_cast<std::size_t>(found.outcome)],
                        to_file_names(found.left_alone));
}

py::list recover_changes(const HeldFolder& held, const py::list& names) {
  const std::vector<std::string> only = file_names_of(names);
  const detail::Recovered found =
      in_folder(held, [&] { return detail::recover_changes(held.folder, only, announce_change); });
  return to_file_names(found.left_alone);
}

void refuse_unrecovered(const HeldFolder& held, py::handle file) {
  const std::string name = file_name_of(file);
  const GilRelease release;
  detail::refuse_unrecovered(held.folder, name);
}

}  // namespace

void register_in_place(py::module_& module) {
  Class<Changing>(module, "_InPlaceChange")
      .constructor(
          [](const HeldFolder& held, const py::list& files, py::handle name, bool shared) {
            return std::make_unique<Changing>(held, files, name, shared);
          },
          py::arg("folder"), py::arg("files"), py::arg("name"), py::arg("shared"))
      .method_of_itself("__enter__", "__enter__(self, /)\n--\n\n")
      .method(
          "__exit__", [](Changing& self, py::handle, py::handle, py::handle) { self.close(); },
          py::arg("_exc_type"), py::arg("_exc_value"), py::arg("_traceback"),
          "__exit__(self, /, _exc_type, _exc_value, _traceback)\n--\n\n"
          "Closes the files, and removes what was not committed.")
      .property("tensors", &Changing::tensors)
      .method("read", &Changing::read, py::arg("name"))
      .method("write", &Changing::write, py::arg("name"), py::arg("data"))
      .method("commit", [](const Changing& self) {
        self.run([](InPlaceChange& change) { change.commit(); });
      });
  define(
      module, "_recover_in", &recover_in, py::arg("folder"), py::arg("file"),
      "_recover_in(folder, file)\n--\n\n"
      "Recovers all saves and changes in place in a folder or, unless the name is empty, those\n"
      "that a file of this name may be of. Returns what was done, and the names of what was left\n"
      "alone.");
  define(
      module, "_recover_changes", &recover_changes, py::arg("folder"), py::arg("names"),
      "_recover_changes(folder, names)\n--\n\n"
      "Recovers changes in place of these files and indexes. Returns the names of what was left\n"
      "alone.");
  define(module, "_refuse_unrecovered", &refuse_unrecovered, py::arg("folder"), py::arg("file"),
         "_refuse_unrecovered(folder, file)\n--\n\n"
         "Raises unless a file can be opened, or another one of its model exists.");
}

}  // namespace safetensors::python

#endif
