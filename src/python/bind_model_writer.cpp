// _ModelWriter; which tensors go to which file, and their names.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "fast_def.hpp"
#include "held_folder.hpp"
#include "register.hpp"
#include "safetensors/detail/model_parts.hpp"
#include "safetensors/detail/recovery.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "save_target.hpp"

namespace safetensors::python {
namespace {

/// Calls `check`. Its errors about an argument are ValueErrors.
template <typename Check>
auto checking(const Check& check) {
  try {
    return check();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw py::value_error(error.what());
  }
}

py::list plan(const py::list& sizes, std::uint64_t max_shard_nbytes) {
  std::vector<std::uint64_t> nbytes;
  nbytes.reserve(sizes.size());
  for (const py::handle size : sizes) nbytes.push_back(size_of(size, "sizes"));
  const ShardPlan found = checking([&] { return plan_shards(nbytes, max_shard_nbytes); });
  py::list shards;
  for (const std::vector<std::size_t>& tensors : found.shards) {
    py::list indices(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      PyList_SET_ITEM(indices.ptr(), static_cast<Py_ssize_t>(i),
                      to_int(tensors[i]).release().ptr());
    }
    shards.append(std::move(indices));
  }
  return shards;
}

py::list file_names(py::handle name, std::size_t count) {
  const std::string model = file_name_of(name);
  py::list names;
  for (std::size_t i = 1; i <= count; ++i) {
    names.append(to_file_name(shard_file_name(model, i, count)));
  }
  return names;
}

void register_names(py::module_& module) {
  module.add_object("_MAX_SHARDS", to_int(kMaxShards));
  module.add_object("_MAX_MODEL_NAME", to_int(detail::kMaxModelName));
  define(module, "_plan_shards", &plan, py::arg("sizes"), py::arg("max_shard_nbytes"),
         "_plan_shards(sizes, max_shard_nbytes)\n--\n\n"
         "Returns the indices of the tensors of each file of a model.");
  define(module, "_shard_file_names", &file_names, py::arg("name"), py::arg("count"),
         "_shard_file_names(name, count)\n--\n\n"
         "Returns the names of the files of a model, without the index.");
  define(
      module, "_index_file_name",
      [](py::handle name) { return to_file_name(index_file_name(file_name_of(name))); },
      py::arg("name"), "_index_file_name(name)\n--\n\nReturns the name of the index of a model.");
  define(
      module, "_name_to_save",
      [](py::handle file) { return to_file_name(detail::name_to_save(file_name_of(file))); },
      py::arg("file"),
      "_name_to_save(file)\n--\n\n"
      "Returns the name of a model to save, from that of the index or first file of the old one.");
  define(
      module, "_check_model_name",
      [](py::handle name, std::size_t most) {
        checking([&] { detail::check_model_name(file_name_of(name), most); });
      },
      py::arg("name"), py::arg("most"),
      "_check_model_name(name, most)\n--\n\n"
      "Raises ValueError unless files may be named after this model name of at most so many\n"
      "bytes.");
  define(
      module, "_is_companion_name",
      [](py::handle file) { return detail::is_companion(file_name_of(file)); }, py::arg("file"),
      "_is_companion_name(file)\n--\n\n"
      "Returns whether a file of this name is one that a conversion copies with a model.");
  define(
      module, "_describes_quantised",
      [](py::handle file) { return detail::describes_quantised(file_name_of(file)); },
      py::arg("file"),
      "_describes_quantised(file)\n--\n\n"
      "Returns whether a file of this name says how the tensors of a folder are quantised.");
}

#if !defined(_WIN32)

using detail::ModelParts;
using detail::OwnPlace;

/// A ModelWriter, and the folder that its errors name.
struct Saving {
  std::filesystem::path folder;
  std::unique_ptr<ModelWriter> model;

  template <typename Work>
  auto run(const Work& work) const {
    return in_folder(folder, work);
  }
};

Saving begin(py::handle folder, py::handle name, bool fsync) {
  const std::filesystem::path path = path_of(folder, "folder");
  const ModelWriterOptions options{
      .name = file_name_of(name), .fsync = fsync, .interrupt = python_interrupt()};
  try {
    return in_folder(path,
                     [&] { return Saving{path, std::make_unique<ModelWriter>(path, options)}; });
  } catch (const Error& error) {
    // About an argument, and not about a file in the folder.
    const bool is_argument = error.path().empty() || error.path() == path;
    if (error.code() != ErrorCode::kInvalidArgument || !is_argument) throw;
    throw py::value_error(error.what());
  }
}

py::object rights_of(const Saving& saving) {
  const std::optional<OwnPlace> found = ModelParts::rights(*saving.model);
  if (!found) return py::none();
  return py::make_tuple(HeldFolder{found->folder, {}}, to_file_name(found->name.text()));
}

OwnTarget temporary(const Saving& saving, std::size_t number) {
  return {ModelParts::shard(*saving.model, number), ModelParts::rights(*saving.model)};
}

void add_companion(const Saving& saving, py::handle name, py::handle data) {
  const std::string file = file_name_of(name);
  const BufferView view(data, "data");
  saving.run([&] { saving.model->add_companion(file, view.bytes()); });
}

py::list commit(const Saving& saving, const py::list& shards, std::uint64_t total_nbytes,
                std::string_view sums) {
  std::vector<std::vector<std::string_view>> names;
  for (const py::handle shard : shards) {
    const auto tensors = py::cast<py::list>(shard);
    std::vector<std::string_view>& of_file = names.emplace_back();
    of_file.reserve(tensors.size());
    for (const py::handle tensor : tensors) of_file.push_back(text_of(tensor, "name"));
  }
  const auto paths = saving.run([&] { return saving.model->commit(names, total_nbytes, sums); });
  py::list result;
  for (const std::filesystem::path& path : paths) result.append(to_object(path));
  return result;
}

py::list old_names(const HeldFolder& held, py::handle name) {
  const std::string model = file_name_of(name);
  return to_file_names(in_folder(held, [&] { return detail::old_names(held.folder, model); }));
}

void refuse_other_models(const HeldFolder& held, py::handle ours) {
  const std::vector<std::string> names = file_names_of(ours);
  in_folder(held, [&] { detail::refuse_other_models(held.folder, names); });
}

void register_saves(py::module_& module) {
  Class<Saving>(module, "_ModelWriter")
      .constructor(&begin, py::arg("folder"), py::arg("name"), py::arg("fsync"))
      .property("is_committed", [](const Saving& saving) { return saving.model->is_committed(); })
      .property("parts",
                [](const Saving& saving) {
                  const OwnPlace& parts = ModelParts::folder(*saving.model);
                  return HeldFolder{parts.folder, parts.name.text()};
                })
      .property("rights_of", &rights_of)
      .method("temporary", &temporary, py::arg("number"))
      .method("add_companion", &add_companion, py::arg("name"), py::arg("data"))
      .method("commit", &commit, py::arg("shards"), py::arg("total_size"), py::arg("sums"))
      .method("abort", [](const Saving& saving) { saving.run([&] { saving.model->abort(); }); });
  define(module, "_old_names", &old_names, py::arg("folder"), py::arg("name"),
         "_old_names(folder, name)\n--\n\nReturns the names of the files of a model in a folder.");
  define(module, "_refuse_other_models", &refuse_other_models, py::arg("folder"), py::arg("ours"),
         "_refuse_other_models(folder, ours)\n--\n\n"
         "Raises SafetensorError if a folder has a file of a model that is not one of these.");
}

#else

void register_saves(py::module_&) {}

#endif

}  // namespace

void register_model_writer(py::module_& module) {
  register_names(module);
  register_saves(module);
}

}  // namespace safetensors::python
