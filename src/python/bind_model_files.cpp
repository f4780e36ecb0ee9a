// The rules which files of a folder are the model, and which tensors of these files.
#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "gil.hpp"
#include "open_file.hpp"
#include "register.hpp"
#include "safetensors/detail/model_folder.hpp"
#include "safetensors/detail/model_tensors.hpp"

namespace safetensors::python {
namespace {

constexpr const char* kForms[] = {"file", "index", "shards", "ranks", "parts"};

py::tuple to_tuple(const ModelFiles& model) {
  py::list remarks;
  for (const std::string& remark : model.remarks) remarks.append(to_str(remark));
  return py::make_tuple(to_file_name(model.name), to_file_name(model.variant),
                        kForms[static_cast<std::size_t>(model.form)], to_file_name(model.index),
                        to_file_names(model.files), remarks, to_file_names(model.others));
}

py::tuple choose_files(py::handle folder, py::handle names, py::handle name, py::handle variant,
                       const py::object& files_of_index, const py::object& exists) {
  const FolderQuestions questions{
      .files_of_index =
          [&](const std::string& index) {
            return file_names_of(files_of_index(to_file_name(index)));
          },
      .exists = [&](const std::string& file) { return exists(to_file_name(file)).cast<bool>(); }};
  try {
    return to_tuple(choose_model_files(
        file_names_of(names), {.name = file_name_of(name), .variant = file_name_of(variant)},
        questions));
  } catch (const Error& error) {
    throw error.with_context({}, path_of(folder, "folder"));
  }
}

/// Returns a dict from the path of each file to its tensors' names, and the total size or None.
py::tuple tuple_of_index(const ShardIndex& index) {
  std::vector<std::size_t> counts(index.files().size());
  for (std::size_t i = 0; i < index.size(); ++i) ++counts[index.file(i)];
  std::vector<py::list> lists;
  lists.reserve(counts.size());
  py::dict by_file;
  const GcPause pause;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    lists.emplace_back(counts[i]);
    by_file[to_unicode(index.files()[i])] = lists.back();
  }
  std::vector<std::size_t> filled(counts.size());
  for (std::size_t i = 0; i < index.size(); ++i) {
    const std::size_t number = index.file(i);
    PyList_SET_ITEM(lists[number].ptr(), static_cast<Py_ssize_t>(filled[number]++),
                    to_unicode(index.name(i)).release().ptr());
  }
  return py::make_tuple(by_file, index.total_size());
}

/// The same, and the version of the file that was read.
py::tuple tuple_of_file(const ShardIndex& index) {
  const py::tuple content = tuple_of_index(index);
  const FileId id = index.file_id().value();
  return py::make_tuple(content[0], content[1],
                        py::make_tuple(id.device, id.file, id.nbytes, id.modified));
}

py::tuple read_index(py::handle path) {
  const std::filesystem::path file = path_of(path, "path");
  return tuple_of_file([&] {
    const GilRelease release;
    return ShardIndex::read(file);
  }());
}

void check_index(py::handle index, const py::tuple& version) {
  const std::filesystem::path path = path_of(index, "index");
  const FileId read{.device = version[0].cast<std::uint64_t>(),
                    .file = version[1].cast<std::uint64_t>(),
                    .nbytes = version[2].cast<std::uint64_t>(),
                    .modified = version[3].cast<std::int64_t>()};
  const GilRelease release;
  detail::check_index(path, read);
}

/// Returns what tuple_of_index() does for the text of an index. `name` names it in errors.
py::tuple parse_index(py::handle data, py::handle name) {
  const BufferView view(data, "data");
  const std::filesystem::path file = path_of(name, "name");
  return tuple_of_index([&] {
    const GilRelease release;
    return ShardIndex::parse(
        {reinterpret_cast<const char*>(view.bytes().data()), view.bytes().size()}, file);
  }());
}

/// Returns the model of a local folder, and what its index says or None.
py::tuple find_in_folder(py::handle folder, py::handle name, py::handle variant, py::handle names) {
  const std::filesystem::path path = path_of(folder, "folder");
  const ModelChoice choice{.name = file_name_of(name), .variant = file_name_of(variant)};
  std::optional<std::vector<std::string>> given;
  if (!names.is_none()) given = file_names_of(names);
  const FoundModel found = [&] {
    const GilRelease release;
    return find_model_files(path, choice, given);
  }();
  return py::make_tuple(to_tuple(found),
                        found.content ? py::object(tuple_of_file(*found.content)) : py::none());
}

std::vector<std::string_view> texts_of(const py::list& names) {
  std::vector<std::string_view> texts;
  texts.reserve(names.size());
  for (const py::handle name : names) texts.push_back(text_of(name, "name"));
  return texts;
}

/// Returns the names that an index puts into a file, in the order of their bytes.
py::list names_in_order(const Handle& handle, const py::list& names, py::handle index) {
  const auto open_file = handle.file();
  const SafeOpen& file = open_file->file();
  const std::vector<const TensorInfo*> entries =
      detail::entries_of(file.header(), texts_of(names), file.path(), path_of(index, "index"));
  std::vector<std::pair<const TensorInfo*, std::size_t>> order;
  order.reserve(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) order.emplace_back(entries[i], i);
  std::ranges::sort(order, std::less<>());  // a header's entries lie in the order of their bytes
  py::list ordered(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    PyList_SET_ITEM(ordered.ptr(), static_cast<Py_ssize_t>(i),
                    py::object(names[order[i].second]).release().ptr());
  }
  return ordered;
}

/// Raises SafetensorError if two of the files have the same name.
void refuse_repeated(const std::vector<py::list>& names, const py::list& paths) {
  std::vector<std::vector<TensorInfo>> files;
  for (const py::list& of_file : names) {
    std::vector<TensorInfo>& entries = files.emplace_back();
    entries.reserve(of_file.size());
    for (const std::string_view name : texts_of(of_file)) {
      TensorInfo entry;
      entry.name = name;
      entries.push_back(entry);
    }
  }
  const std::vector<std::span<const TensorInfo>> views(files.begin(), files.end());
  (void)detail::sorted_entries(views,
                               [&](std::size_t file) { return path_of(paths[file], "path"); });
}

void fail_absent(py::handle name, py::handle file, py::handle index) {
  detail::fail_absent(text_of(name, "name"), path_of(file, "file"), path_of(index, "index"));
}

/// Returns the kind, name, variant, number and total; None for what is no file of a model. The name
/// may be any text, as those in a file that somebody wrote.
py::object take_apart(py::handle file) {
  using Kind = ModelFileName::Kind;
  constexpr const char* kErrors = "surrogatepass";
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(py::str(file).ptr(), "utf-8", kErrors));
  if (!bytes) throw py::error_already_set();
  const auto text = static_cast<std::string_view>(bytes);
  const ModelFileName parsed = parse_model_file_name(text);
  if (parsed.kind == Kind::kOther) return py::none();
  const auto decoded = [](std::string_view part) {
    auto object = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(part.data(), static_cast<Py_ssize_t>(part.size()), kErrors));
    if (!object) throw py::error_already_set();
    return object;
  };
  constexpr const char* kKinds[] = {"other", "single", "index", "shard", "rank", "part"};
  return py::make_tuple(kKinds[static_cast<std::size_t>(parsed.kind)], decoded(parsed.name),
                        decoded(parsed.variant), parsed.number, parsed.total);
}

py::list probes(py::handle name, py::handle variant) {
  return to_file_names(
      model_probes({.name = file_name_of(name), .variant = file_name_of(variant)}));
}

void register_folders(py::module_& module) {
  define(
      module, "_find_in_folder", &find_in_folder, py::arg("folder"), py::arg("name"),
      py::arg("variant"), py::arg("names") = py::none(),
      "_find_in_folder(folder, name, variant, names=None)\n--\n\n"
      "Finds the model of a local folder. `names`: those among which it is chosen, if the folder\n"
      "lacks some. Returns what _choose_model_files() returns, and what _read_index() returns of\n"
      "its index or None.");
  define(
      module, "_refuse_interrupted",
      [](py::handle folder) {
        const std::filesystem::path path = path_of(folder, "folder");
        const GilRelease release;
        detail::refuse_interrupted(path);
      },
      py::arg("folder"),
      "_refuse_interrupted(folder)\n--\n\n"
      "Raises SafetensorError if files of a model are just taking their places, or a save was\n"
      "interrupted while they did.");
  define(
      module, "_has_model_files",
      [](py::handle folder) { return detail::has_model_files(path_of(folder, "folder")); },
      py::arg("folder"),
      "_has_model_files(folder)\n--\n\n"
      "Returns whether a folder has files of a model, other than a LoRA adapter: if not, its\n"
      "model may be one of GGUF or PyTorch files.");
  define(
      module, "_models_below",
      [](py::handle folder) { return to_str(detail::models_below(path_of(folder, "folder"))); },
      py::arg("folder"),
      "_models_below(folder)\n--\n\n"
      "Returns a sentence about the subfolders that have models, as those of a pipeline of\n"
      "diffusers; empty if none has.");
}

void register_tensors(py::module_& module) {
  define(
      module, "_read_index", &read_index, py::arg("path"),
      "_read_index(path)\n--\n\n"
      "Returns the names of the tensors of each file, the bytes of all tensors or None, and the\n"
      "version of the index for _check_index().");
  define(module, "_check_index", &check_index, py::arg("index"), py::arg("version"),
         "_check_index(index, version)\n--\n\n"
         "Raises SafetensorError if an index is not the file that was read any more. Called after\n"
         "the last file of its model was opened.");
  define(module, "_parse_index", &parse_index, py::arg("data"), py::arg("name"));
  define(module, "_names_in_order", &names_in_order, py::arg("handle"), py::arg("names"),
         py::arg("index"),
         "_names_in_order(handle, names, index)\n--\n\n"
         "Returns the names that an index puts into a file, in the order of their bytes. Raises\n"
         "SafetensorError if the file lacks one.");
  define(module, "_refuse_repeated", &refuse_repeated, py::arg("names"), py::arg("paths"),
         "_refuse_repeated(names, paths)\n--\n\n"
         "Raises SafetensorError if two files have the same name. `names` has a list for each\n"
         "file.");
  define(module, "_fail_absent", &fail_absent, py::arg("name"), py::arg("file"), py::arg("index"),
         "_fail_absent(name, file, index)\n--\n\n"
         "Raises SafetensorError for a tensor that an index puts into a file without it.");
}

}  // namespace

void register_model_files(py::module_& module) {
  register_folders(module);
  register_tensors(module);
  module.add_object("_MAX_INDEX_FILES", to_int(kMaxIndexFiles));
  define(
      module, "_choose_model_files", &choose_files, py::arg("folder"), py::arg("names"),
      py::arg("name"), py::arg("variant"), py::arg("files_of_index"), py::arg("exists"),
      "_choose_model_files(folder, names, name, variant, files_of_index, exists)\n--\n\n"
      "Chooses the files of the model among the names in a folder. `folder` names it in errors.\n"
      "Returns name, variant, form, index, files, remarks and others.");
  define(module, "_parse_model_file_name", &take_apart, py::arg("file"),
         "_parse_model_file_name(file)\n--\n\n"
         "Takes the name of a file of a model apart. Returns the kind, the name, the variant, the\n"
         "number and the total; None for other files.");
  define(module, "_model_probes", &probes, py::arg("name"), py::arg("variant"),
         "_model_probes(name, variant)\n--\n\n"
         "Returns the names that a folder which cannot be listed is asked for, in pairs.");
}

}  // namespace safetensors::python
