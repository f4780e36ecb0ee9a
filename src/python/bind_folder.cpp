// _Folder and _write_beside: the files whose names the package chose.
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "held_folder.hpp"
#include "register.hpp"
#include "safetensors/detail/private_folders.hpp"
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

py::object own_stem(py::handle name) {
  return to_object(std::filesystem::path(detail::OwnName::stem_of(path_of(name, "name").native())));
}

void remove_sums_of(py::handle path) {
  const std::filesystem::path file = path_of(path, "path");
  saving(file, [&] { remove_sums(file); });
}

void register_all_systems(py::module_& module) {
  define(module, "_is_url", &is_url, py::arg("filename"),
         "_is_url(filename)\n--\n\n"
         "Returns whether it is a str that begins with a scheme and \"://\".");
  define(module, "_remove_sums", &remove_sums_of, py::arg("path"),
         "_remove_sums(path)\n--\n\nRemoves the sums of a file that is about to change.");
  define(
      module, "_path_to_save",
      [](py::handle path) { return to_object(path_to_save(path, "filename")); },
      py::arg("filename"), "_path_to_save(filename)\n--\n\nReturns the path as a str.");
  define(
      module, "_own_stem", &own_stem, py::arg("name"),
      "_own_stem(name)\n--\n\n"
      "Returns what `.STEM.RANDOM.KIND` has of a name: all, or of a long one a part and a digest.");
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

OwnName own_name_of(py::handle object, const char* argument = "name") {
  try {
    return OwnName(path_of(object, argument).native());
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

py::list names(const Held& held) {
  py::list result;
  for (const OwnName::Text& name : in_folder(held, [&] { return held.folder.names(); })) {
    result.append(to_object(name));
  }
  return result;
}

py::object identity(const Held& held, py::handle name) {
  const OwnName own = own_name_of(name);
  const auto found = in_folder(held, [&] { return held.folder.status(own); });
  if (!found) return py::none();
  if (found->is_folder) {
    const std::filesystem::path path = held.folder.path() / own.text();
    raise_unsaved(Error(ErrorCode::kNotRegularFile, "this is a folder",
                        ErrorContext{.path = path, .os_error = EISDIR}),
                  path);
  }
  py::list fields;
  fields.append(found->nbytes);
  fields.append(found->modified);
  fields.append(found->inode);
  return fields;
}

py::object open_file(const Held& held, py::handle name, bool own, bool write) {
  const OwnName its = own_name_of(name);
  const int fd = in_folder(held, [&] { return held.folder.open_file(its, write, own); });
  return fd < 0 ? py::object(py::none()) : py::int_(fd);
}

bool remove(const Held& held, py::handle name, int fd) {
  const OwnName own = own_name_of(name);
  return in_folder(held, [&] { return held.folder.remove(own, fd); });
}

std::size_t remove_stale(const Held& held, py::handle only) {
  std::optional<OwnName> name;
  if (!only.is_none()) name = own_name_of(only, "only");
  return in_folder(held, [&] { return held.folder.remove_stale(name ? &*name : nullptr); });
}

Held make_private(const Held& held, py::handle name, std::string_view kind) {
  const OwnName::Text text = path_of(name, "name").native();
  OwnPlace made = in_folder(held, [&] { return held.folder.make_private(text, kind); });
  return {std::move(made.folder), made.name.text()};
}

py::object open_private(const Held& held, py::handle name, std::uint64_t inode) {
  const OwnName own = own_name_of(name);
  std::optional<Folder> found =
      in_folder(held, [&] { return held.folder.open_private(own, inode); });
  if (!found) return py::none();
  return py::cast(Held{std::move(*found), own.text()});
}

void remove_private(const Held& held, const Held& folder) {
  const OwnName name(folder.name);
  in_folder(held, [&] { held.folder.remove_private(name, folder.folder); });
}

OwnTarget target(const Held& held, py::handle name, py::handle like) {
  return {{held.folder, own_name_of(name)}, optional_place_of(like)};
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

void take_rights(const Held& held, py::handle name, py::handle like) {
  const OwnName own = own_name_of(name);
  const OwnPlace other = place_of(like);
  in_folder(held, [&] { held.folder.take_rights(own, other); });
}

/// Returns (stem, folder) of each private folder of this user, and (stem, name) of what else has
/// such a name.
py::tuple private_folders(const Held& held, std::string_view kind, const py::set& parts) {
  std::set<std::string, std::less<>> names;
  for (const py::handle part : parts) names.insert(file_name_of(part));
  const detail::PrivateFolders found = in_folder(held, [&] {
    return detail::private_folders(
        held.folder, kind, [](const OwnName::Text&) { return true; },
        [&](const OwnName::Text& file) { return names.contains(file); });
  });
  py::list left;
  for (const detail::LeftFolder& each : found.left) {
    left.append(
        py::make_tuple(to_file_name(each.stem), Held{each.place.folder, each.place.name.text()}));
  }
  py::list foreign;
  for (const detail::ForeignFolder& each : found.foreign) {
    foreign.append(py::make_tuple(to_file_name(each.stem), to_file_name(each.name)));
  }
  return py::make_tuple(left, foreign);
}

void move(const Held& held, py::handle name, const Held& folder, py::handle to) {
  const OwnName own = own_name_of(name);
  const OwnPlace target{folder.folder, own_name_of(to, "to")};
  in_folder(held, [&] { held.folder.move(own, target); });
}

}  // namespace

void register_folder(py::module_& module) {
  register_all_systems(module);
  define(module, "_leases_see_mappings", &detail::leases_see_mappings, py::arg("fd"),
         "_leases_see_mappings(fd)\n--\n\n"
         "Returns whether the system grants no write lease of a file that is mapped.");
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
      .method("fileno", [](const Held& held) { return held.folder.descriptor(); })
      .method("is_shared", [](const Held& held) { return held.folder.is_shared(); })
      .method("flush", [](const Held& held) { in_folder(held, [&] { held.folder.flush(); }); })
      .method("names", &names)
      .method("identity", &identity, py::arg("name"))
      .method("open", &open_file, py::arg("name"), py::arg("own") = true, py::arg("write") = true)
      .method("remove", &remove, py::arg("name"), py::arg("fd") = -1)
      .method("remove_stale", &remove_stale, py::arg("only") = py::none())
      .method("private_folders", &private_folders, py::arg("kind"), py::arg("parts"))
      .method("is_used",
              [](const Held& held) {
                return in_folder(held, [&] { return detail::is_used(held.folder); });
              })
      .method("make_private", &make_private, py::arg("name"), py::arg("kind"))
      .method("open_private", &open_private, py::arg("name"), py::arg("inode") = 0)
      .method("remove_private", &remove_private, py::arg("folder"))
      .method("target", &target, py::arg("name"), py::arg("like") = py::none())
      .method("write", &write_new, py::arg("name"), py::arg("data"), py::arg("like") = py::none(),
              py::arg("fsync") = false)
      .method("take_rights", &take_rights, py::arg("name"), py::arg("like"))
      .method("move", &move, py::arg("name"), py::arg("target"), py::arg("to"));
}

#endif

}  // namespace safetensors::python
