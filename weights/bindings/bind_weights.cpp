// The model class behind safetensors.weights.WeightProvider.
#include "bind_weights.hpp"

#include <vector>

#include "fast_def.hpp"
#include "gil.hpp"
#include "open_hook.hpp"
#include "weights_values.hpp"

namespace safetensors::python {
namespace {

using weights::ModelOptions;
using weights::WeightInfo;
using weights::WeightProvider;

/// Returns the result of `function`. Errors of the core become those of the weight layer.
template <typename Function>
auto with_weights_errors(const Function& function) {
  try {
    return function();
  } catch (const weights::WeightsError&) {
    throw;
  } catch (const Error& error) {
    throw weights::WeightsError(weights::Errc::io, error);
  }
}

/// The same for a function that does not use Python.
template <typename Function>
auto without_gil(const Function& function) {
  const GilRelease release;
  return with_weights_errors(function);
}

std::filesystem::path model_path_of(py::handle path) {
  return with_weights_errors(
      [&] { return local_path_of(path, "path", "opening weights by a URL"); });
}

/// Returns whether `text` is the first of two choices. Raises ValueError if it is neither.
bool is_first(std::string_view text, const char* argument, std::string_view first,
              std::string_view second) {
  if (text == first) return true;
  if (text == second) return false;
  throw py::value_error("argument '" + std::string(argument) + "': '" + std::string(text) +
                        "' is neither '" + std::string(first) + "' nor '" + std::string(second) +
                        "'");
}

std::unique_ptr<WeightProvider> open_model(py::handle path, std::string_view layout,
                                           std::string_view bf16, std::string_view scales,
                                           bool allow_f16_overflow, bool mmap, bool strict_index,
                                           bool allow_gaps, py::handle cache_bytes,
                                           py::handle quant, std::string name,
                                           std::string variant) {
  ModelOptions options;
  const bool native = is_first(layout, "layout", "native", "hf");
  options.layout = native ? ModelOptions::native : ModelOptions::hf;
  options.bf16_to_f16 = is_first(bf16, "bf16", "f16", "keep");
  options.scales_to_f16 = is_first(scales, "scales", "f16", "keep");
  options.allow_f16_overflow = allow_f16_overflow;
  options.mmap = mmap;
  options.strict_index = strict_index;
  options.allow_gaps = allow_gaps;
  if (!cache_bytes.is_none()) options.cache_bytes = py::cast<std::size_t>(cache_bytes);
  options.quant = to_quant_params(quant);
  options.choice = {.name = std::move(name), .variant = std::move(variant)};
  const std::filesystem::path where = model_path_of(path);
  return without_gil(
      [&] { return std::make_unique<WeightProvider>(WeightProvider::open(where, options)); });
}

py::object text_or_none(std::string_view text) {
  return text.empty() ? py::object(py::none()) : py::object(to_str(text));
}

/// Returns the fields of a SchemeParams in the order of its Python class, or None.
py::object params_of(const WeightInfo& info) {
  if (info.storage != weights::Storage::scheme) return py::none();
  const weights::SchemeParams& params = info.scheme_params;
  return py::make_tuple(params.bits, params.group_rows, params.group_columns, params.symmetric);
}

/// Returns the tensors of a weight: role, name in the file, type and shape of each.
py::list parts(const WeightProvider& model, std::string_view name) {
  py::list list;
  for (const weights::WeightPart& part : model.parts(name)) {
    py::tuple shape(part.shape.size());
    for (std::size_t i = 0; i < part.shape.size(); ++i) shape[i] = py::int_(part.shape[i]);
    list.append(py::make_tuple(to_unicode(part.role), to_unicode(part.source),
                               to_str(part.type_name), shape));
  }
  return list;
}

/// Returns the fields of a TensorInfo in the order of its Python class: name, source, shape,
/// storage, code, type_name, quant, stored_bytes, scales_code, is_decoded, scheme, scheme_params.
py::tuple describe(const WeightProvider& model, std::string_view name) {
  const WeightInfo& info = model.info(name);
  py::tuple shape(info.shape.size());
  for (std::size_t i = 0; i < info.shape.size(); ++i) shape[i] = py::int_(info.shape[i]);
  return py::make_tuple(to_unicode(info.name), to_unicode(info.source), shape,
                        to_str(weights::name(info.storage)), info.code, to_str(info.type_name),
                        to_tuple(info.quant), info.stored_bytes, info.scales_code, info.is_decoded,
                        text_or_none(info.scheme), params_of(info));
}

py::object output_name(const WeightProvider& model) { return text_or_none(model.output_name()); }

py::object norm_weight_offset_of(const WeightProvider& model, std::string_view name) {
  const std::optional<double> offset = model.norm_weight_offset_of(name);
  return offset ? py::object(py::float_(*offset)) : py::object(py::none());
}

/// Returns the buffer that `function` returns, which may be a view of a file.
template <typename Function>
weights::WeightBuffer hand_out(const Function& function) {
  weights::WeightBuffer buffer = without_gil(function);
  if (buffer.is_view()) install_open_hook();
  return buffer;
}

weights::WeightBuffer get_tensor(const WeightProvider& model, std::string_view name) {
  return hand_out([&] { return model.get_tensor(name, python_interrupt()); });
}

weights::WeightBuffer get_stored(const WeightProvider& model, std::string_view name) {
  return hand_out([&] { return model.get_stored(name, python_interrupt()); });
}

weights::WeightBuffer get_part(const WeightProvider& model, std::string_view name,
                               std::size_t index) {
  return hand_out([&] { return model.get_part(name, index, python_interrupt()); });
}

weights::WeightBuffer fuse_weights(const WeightProvider& model, const py::tuple& names) {
  std::vector<std::string_view> views;
  for (const py::handle name : names) views.push_back(text_of(name, "names"));
  return hand_out([&] { return model.fuse_weights(views, python_interrupt()); });
}

void dequantize(const WeightProvider& model, std::string_view name, py::handle out,
                std::string_view dtype, std::int64_t row0, std::int64_t rows) {
  const WritableBuffer buffer(out);
  if (dtype == "float32") {
    const std::span<float> values = buffer.values<float>();
    without_gil([&] { model.dequantize(name, values, row0, rows, python_interrupt()); });
    return;
  }
  const bool half = is_first(dtype, "dtype", "float16", "bfloat16");
  const std::span<std::uint16_t> values = buffer.values<std::uint16_t>();
  without_gil([&] {
    if (half) {
      model.dequantize_f16(name, values, row0, rows, python_interrupt());
    } else {
      model.dequantize_bf16(name, values, row0, rows, python_interrupt());
    }
  });
}

py::list paths(const std::vector<std::filesystem::path>& files) {
  py::list list;
  for (const std::filesystem::path& file : files) list.append(to_object(file));
  return list;
}

py::list texts(const std::vector<std::string>& values) {
  py::list list;
  for (const std::string& value : values) list.append(to_str(value));
  return list;
}

py::list names(const WeightProvider& model) {
  py::list list;
  for (const WeightInfo& info : model.tensors()) list.append(to_unicode(info.name));
  return list;
}

py::list metadata_keys(const WeightProvider& model) {
  py::list list;
  for (const auto& item : model.metadata()) list.append(to_unicode(item.key));
  return list;
}

py::object metadata_value(const WeightProvider& model, std::string_view key) {
  const weights::MetaValue* value = model.metadata(key);
  if (value == nullptr) throw py::key_error(std::string(key));
  const GcPause pause;
  return to_object(*value);
}

py::dict cache_stats(const WeightProvider& model) {
  const weights::CacheStats stats = model.cache_stats();
  py::dict dict;
  dict["entries"] = stats.entries;
  dict["bytes"] = stats.bytes;
  dict["hits"] = stats.hits;
  dict["misses"] = stats.misses;
  dict["evictions"] = stats.evictions;
  return dict;
}

}  // namespace

void register_weights(py::module_& module) {
  Class<weights::WeightBuffer>(module, "Buffer", py::buffer_protocol())
      .property("sections",
                [](const weights::WeightBuffer& buffer) {
                  const auto& s = buffer.sections();
                  py::tuple sizes(s.size());
                  for (std::size_t i = 0; i < s.size(); ++i) sizes[i] = py::int_(s[i]);
                  return sizes;
                })
      .property("is_view", &weights::WeightBuffer::is_view)
      .method("__len__", &weights::WeightBuffer::nbytes)
      .def_buffer([](const weights::WeightBuffer& buffer) {
        auto* const data = const_cast<std::byte*>(buffer.bytes().data());
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(data),
                               static_cast<py::ssize_t>(buffer.nbytes()), true);
      });

  Class<WeightProvider>(module, "Model")
      .constructor(&open_model, py::arg("path"), py::kw_only(), py::arg("layout"), py::arg("bf16"),
                   py::arg("scales"), py::arg("allow_f16_overflow"), py::arg("mmap"),
                   py::arg("strict_index"), py::arg("allow_gaps"), py::arg("cache_bytes"),
                   py::arg("quant"), py::arg("name"), py::arg("variant"))
      .property("format", [](const WeightProvider& model) { return to_str(name(model.format())); })
      .property("files", [](const WeightProvider& model) { return paths(model.files()); })
      .property("names", &names)
      .property("unmapped", [](const WeightProvider& model) { return texts(model.unmapped()); })
      .property("extras", [](const WeightProvider& model) { return texts(model.extras()); })
      .property("scheme", [](const WeightProvider& model) { return text_or_none(model.scheme()); })
      .property("undecoded_method",
                [](const WeightProvider& model) { return to_str(model.undecoded_method()); })
      .property("warnings", [](const WeightProvider& model) { return texts(model.warnings()); })
      .property("config", [](const WeightProvider& model) { return to_dict(model.config()); })
      .property("output_name", &output_name)
      .method("has_tensor", &WeightProvider::has_tensor, py::arg("name"))
      .method("describe", &describe, py::arg("name"))
      .method("parts", &parts, py::arg("name"))
      .method("get_dtype", &WeightProvider::get_dtype, py::arg("name"))
      .method("norm_weight_offset_of", &norm_weight_offset_of, py::arg("name"))
      .method("get_tensor", &get_tensor, py::arg("name"))
      .method("get_stored", &get_stored, py::arg("name"))
      .method("get_part", &get_part, py::arg("name"), py::arg("index"))
      .method("fuse_weights", &fuse_weights, py::arg("names"))
      .method("dequantize", &dequantize, py::arg("name"), py::arg("out"), py::arg("dtype"),
              py::arg("row0"), py::arg("rows"))
      .property("metadata_keys", &metadata_keys)
      .method("metadata_value", &metadata_value, py::arg("key"))
      .method("clear_cache", &WeightProvider::clear_cache)
      .method("cache_stats", &cache_stats);

  define(
      module, "detect_format",
      [](py::handle path) {
        const std::filesystem::path where = model_path_of(path);
        return to_str(name(without_gil([&] { return WeightProvider::detect_format(where); })));
      },
      py::arg("path"));
  define(
      module, "_gguf_models",
      [](py::handle folder) {
        const std::filesystem::path where = model_path_of(folder);
        return paths(without_gil([&] { return WeightProvider::gguf_models(where); }));
      },
      py::arg("folder"));
}

}  // namespace safetensors::python
