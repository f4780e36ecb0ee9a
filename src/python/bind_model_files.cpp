// The rule which files of a folder are the model, and the names of these files.
#include <string>
#include <string_view>
#include <vector>

#include "errors.hpp"
#include "fast_def.hpp"
#include "register.hpp"

namespace safetensors::python {
namespace {

constexpr const char* kForms[] = {"file", "index", "shards", "ranks", "parts"};

/// Converts the name of a file, which Python decodes as the system's. Not by a path: each name
/// would take a microsecond.
std::string name_of(py::handle name) {
  const auto bytes = py::reinterpret_steal<py::bytes>(PyUnicode_EncodeFSDefault(name.ptr()));
  if (!bytes) throw py::error_already_set();
  return std::string(bytes);
}

py::object to_name(std::string_view name) {
  auto object = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeFSDefaultAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
  if (!object) throw py::error_already_set();
  return object;
}

std::vector<std::string> names_of(py::handle names) {
  std::vector<std::string> converted;
  for (const py::handle name : names) converted.push_back(name_of(name));
  return converted;
}

py::list to_names(const std::vector<std::string>& names) {
  py::list converted(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) converted[i] = to_name(names[i]);
  return converted;
}

py::tuple choose_files(py::handle folder, py::handle names, py::handle name, py::handle variant,
                       const py::object& files_of_index, const py::object& exists) {
  const FolderQuestions questions{
      .files_of_index =
          [&](const std::string& index) { return names_of(files_of_index(to_name(index))); },
      .exists = [&](const std::string& file) { return exists(to_name(file)).cast<bool>(); }};
  try {
    const ModelFiles model = choose_model_files(
        names_of(names), {.name = name_of(name), .variant = name_of(variant)}, questions);
    py::list remarks;
    for (const std::string& remark : model.remarks) remarks.append(to_str(remark));
    return py::make_tuple(to_name(model.name), to_name(model.variant),
                          kForms[static_cast<std::size_t>(model.form)], to_name(model.index),
                          to_names(model.files), remarks, to_names(model.others));
  } catch (const Error& error) {
    throw error.with_context({}, path_of(folder, "folder"));
  }
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
  return to_names(model_probes({.name = name_of(name), .variant = name_of(variant)}));
}

}  // namespace

void register_model_files(py::module_& module) {
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
