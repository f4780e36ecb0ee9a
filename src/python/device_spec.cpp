#include "device_spec.hpp"

#include <charconv>
#include <utility>

#include "errors.hpp"

namespace safetensors::python {
namespace {

using Kind = DeviceSpec::Kind;

[[noreturn]] void fail_device(py::handle object, const char* why = "") {
  raise_safetensor_error(ErrorCode::kInvalidArgument,
                         "device " + py::cast<std::string>(py::str(object)) + " is invalid" + why);
}

/// Returns the index in "cuda:1"; 0 if there is none. `object` is what the caller passed, for the
/// error text.
std::uint64_t parse_index(py::handle object, std::string_view device) {
  const std::size_t colon = device.find(':');
  if (colon == std::string_view::npos) return 0;
  std::string_view text = device.substr(colon + 1);
  if (text.find(':') != std::string_view::npos) fail_device(object);
  const auto refuse = [&](const char* why) {
    throw py::value_error(std::string(why) + ": device " + std::string(device) +
                          " (an index is expected after the colon)");
  };
  std::uint64_t index = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (text.empty()) refuse("cannot parse integer from empty string");
  if (error == std::errc::result_out_of_range) refuse("number too large to fit in target type");
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse("invalid digit found in string");
  }
  return index;
}

DeviceSpec indexed(Kind kind, std::string_view type, std::uint64_t index) {
  const std::string name = std::string(type) + ":" + std::to_string(index);
  return {kind, std::string(type), index, py::str(name)};
}

DeviceSpec parse_text(py::handle object, std::string_view text) {
  if (text == "cpu" || text == "cpu:0") return {};
  if (text == "meta") return {Kind::kMeta, "meta", 0, py::str("meta")};
  const std::string_view type = text.substr(0, text.find(':'));
  if (type == "mps") {
    if (parse_index(object, text) != 0) fail_device(object, ": only mps or mps:0 is supported");
    return {Kind::kOther, "mps", 0, py::str("mps")};
  }
  if (type == "cuda") return indexed(Kind::kCuda, type, parse_index(object, text));
  for (const char* const known : {"npu", "hpu", "xpu", "xla", "mlu", "musa"}) {
    if (type == known) return indexed(Kind::kOther, type, parse_index(object, text));
  }
  fail_device(object,
              " (expected one of: \"cpu\", \"cuda:N\", \"mps\", \"npu:N\", \"hpu:N\", \"xpu:N\", "
              "\"xla:N\", \"mlu:N\", \"musa:N\", \"meta\")");
}

}  // namespace

std::string DeviceSpec::name() const { return py::cast<std::string>(py::str(object)); }

DeviceSpec parse_device(py::handle object) {
  if (object.is_none()) return {};
  if (PyUnicode_Check(object.ptr())) return parse_text(object, text_of(object, "device"));
  if (PyLong_Check(object.ptr())) {
    const long long index = PyLong_AsLongLong(object.ptr());
    if (index == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
    if (index < 0) fail_device(object);
    return {Kind::kOfIndex, "", static_cast<std::uint64_t>(index), py::int_(index)};
  }
  // A torch.device, which can be recognised without importing torch.
  if (std::string_view(Py_TYPE(object.ptr())->tp_name) == "torch.device") {
    const py::str text(object);
    return parse_text(object, text_of(text, "device"));
  }
  fail_device(object);
}

DeviceSpec to_paddle_device(const DeviceSpec& device) {
  const bool is_gpu = device.kind == Kind::kCuda || device.kind == Kind::kOfIndex;
  if (is_gpu) return indexed(Kind::kOther, "gpu", device.index);
  return {Kind::kOther, device.type, device.index, py::str(device.object)};
}

DeviceSpec resolve_index(const DeviceSpec& device) {
  if (device.kind != Kind::kOfIndex) return device;
  py::object resolved;
  try {
    resolved = py::module_::import("torch").attr("device")(device.object);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;  // what torch raises without an accelerator
    const auto why = py::cast<std::string>(py::str(error.value()));
    raise_both(PyExc_RuntimeError,
               Error(ErrorCode::kDevice, "device " + device.name() + " is invalid: " + why));
  }
  auto type = py::cast<std::string>(resolved.attr("type"));
  const Kind kind = type == "cuda" ? Kind::kCuda : Kind::kOther;
  return {kind, std::move(type), device.index, std::move(resolved)};
}

}  // namespace safetensors::python
