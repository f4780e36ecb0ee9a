// _Folder and _write_beside: the files whose names the package chose.
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "held_folder.hpp"
#include "register.hpp"
#include "save_target.hpp"
#include "typed_path.hpp"

namespace safetensors::python {

namespace {

void write_beside(py::handle path, py::handle data, py::handle like, bool fsync,
                  py::object is_wanted) {
  const std::filesystem::path target = local_path_of(path, "path", "saving to a URL");
  const std::filesystem::path other = optional_path_of(like, "like");
  const BufferView view(data, "data");
  std::function<bool()> ask;
  if (!is_wanted.is_none()) {
    ask = [&is_wanted] {
      const GilAcquire gil;
      return py::cast<bool>(is_wanted());
    };
  }
  saving(target, [&] {
    const GilRelease release;
    std::optional<detail::OwnPlace> rights;
    if (!other.empty()) rights = detail::place_of_own(other);
    const auto sink =
        detail::make_own_sink(detail::place_of_own(target), rights ? &*rights : nullptr, ask);
    detail::write_all(*sink, view.bytes(), fsync);
  });
}

void register_all_systems(py::module_& module) {
  define(module, "_is_url", &is_url, py::arg("filename"),
         "_is_url(filename)\n--\n\n"
         "Returns whether it is a str that begins with a scheme and \"://\".");
  define(
      module, "_path_to_save",
      [](py::handle path) { return to_object(path_to_save(path, "filename")); },
      py::arg("filename"), "_path_to_save(filename)\n--\n\nReturns the path as a str.");
  Class<OwnTarget>(module, "_OwnTarget").property("name", [](const OwnTarget& target) {
    return to_object(std::filesystem::path(target.place.name.text()));
  });
  define(module, "_write_beside", &write_beside, py::arg("path"), py::arg("data"),
         py::arg("like") = py::none(), py::arg("fsync") = false, py::arg("is_wanted") = py::none(),
         "_write_beside(path, data, like=None, fsync=False, is_wanted=None)\n--\n\n"
         "Replaces what has a name that follows from that of a model by a file with these bytes.\n"
         "Discards the file if `is_wanted()` returns false, before or just after it has the name.");
}

}  // namespace

#if defined(_WIN32)

// Models of several files are not saved on Windows.
void register_folder(py::module_& module) { register_all_systems(module); }

#else

namespace {

using detail::Folder;
using detail::OwnName;
using detail::OwnPlace;
using Held = HeldFolder;

OwnName own_name_of(py::handle object) {
  try {
    return OwnName(path_of(object, "name").native());
  } catch (const Error& error) {
    throw py::value_error(error.what());
  }
}

OwnPlace place_of(py::handle pair) {
  const auto fields = py::cast<py::tuple>(pair);
  return {py::cast<const Held&>(fields[0]).folder, own_name_of(fields[1])};
}

std::optional<OwnPlace> optional_place_of(py::handle pair) {
  if (pair.is_none()) return std::nullopt;
  return place_of(pair);
}

py::object open_file(const Held& held, py::handle name) {
  const OwnName its = own_name_of(name);
  const int fd = in_folder(held, [&] { return held.folder.open_file(its, true, true); });
  return fd < 0 ? py::object(py::none()) : py::int_(fd);
}

py::object open_private(const Held& held, py::handle name, std::uint64_t inode) {
  const OwnName own = own_name_of(name);
  std::optional<Folder> found =
      in_folder(held, [&] { return held.folder.open_private(own, inode); });
  if (!found) return py::none();
  return py::cast(Held{std::move(*found), own.text()});
}

void write_new(const Held& held, py::handle name, py::handle data, py::handle like, bool fsync) {
  const OwnPlace place{held.folder, own_name_of(name)};
  const std::optional<OwnPlace> other = optional_place_of(like);
  const BufferView view(data, "data");
  in_folder(held, [&] {
    const auto sink = detail::make_part_sink(place, other ? &*other : nullptr, {});
    detail::write_all(*sink, view.bytes(), fsync);
  });
}

void resize(const Held& held, py::handle name, std::uint64_t nbytes) {
  const OwnName own = own_name_of(name);
  in_folder(held, [&] { held.folder.resize(own, nbytes); });
}

void take_rights(const Held& held, py::handle name, py::handle like) {
  const OwnName own = own_name_of(name);
  const OwnPlace other = place_of(like);
  in_folder(held, [&] { held.folder.take_rights(own, other); });
}

}  // namespace

void register_folder(py::module_& module) {
  register_all_systems(module);
  Class<Held>(module, "_Folder")
      .constructor(
          [](py::handle path) {
            const std::filesystem::path typed = local_path_of(path, "path", "saving to a URL");
            return saving(typed, [&] { return Held{Folder::open(typed), {}}; });
          },
          py::arg("path"))
      .property("path", [](const Held& held) { return to_object(held.folder.path()); })
      .property("name", [](const Held& held) { return to_object(held.name); })
      .property("inode", [](const Held& held) { return to_int(held.folder.inode()); })
      .method("open", &open_file, py::arg("name"))
      .method("open_private", &open_private, py::arg("name"), py::arg("inode") = 0)
      .method("write", &write_new, py::arg("name"), py::arg("data"), py::arg("like") = py::none(),
              py::arg("fsync") = false)
      .method("resize", &resize, py::arg("name"), py::arg("nbytes"))
      .method("take_rights", &take_rights, py::arg("name"), py::arg("like"));
}

#endif

}  // namespace safetensors::python
