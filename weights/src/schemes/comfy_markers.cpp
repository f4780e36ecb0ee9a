#include "schemes/comfy_markers.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.hpp"
#include "common/fail.hpp"
#include "schemes/embedded_json.hpp"

namespace safetensors::weights {
namespace {

constexpr std::string_view kMarker = ".comfy_quant";
constexpr std::string_view kHeader = "_quantization_metadata";
constexpr std::string_view kWeight = ".weight";
/// The longest description in a header: 100 bytes for each of 40,000 modules.
constexpr std::size_t kMaxHeader = std::size_t{1} << 22;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;

[[noreturn]] void bad_marker(const SourceTensor& tensor, const std::string& where,
                             const std::string& what) {
  fail(Errc::quant_mismatch, tensor.file->path(), tensor.info->name, where + " " + what);
}

/// Reads fields of a description, which lie in the object or in its "params".
class MarkerFields {
 public:
  MarkerFields(const Json& json, const SourceTensor& tensor, const std::string& where)
      : json_(json), tensor_(tensor), where_(where) {}

  [[nodiscard]] std::string format() const {
    const Json* value = json_.as_string() != nullptr ? &json_ : find("format");
    if (value == nullptr || value->as_string() == nullptr) {
      bad_marker(tensor_, where_, "states no format");
    }
    return *value->as_string();
  }
  [[nodiscard]] bool is_true(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr || value->is_null()) return false;
    if (value->as_bool() == nullptr)
      bad_marker(tensor_, where_, std::string(key) + " is no boolean");
    return *value->as_bool();
  }
  [[nodiscard]] std::optional<std::uint64_t> size(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr || value->is_null()) return std::nullopt;
    const std::int64_t* number = value->as_int64();
    if (number == nullptr || *number < 1 || *number > kMaxSize) {
      bad_marker(tensor_, where_, std::string(key) + " is no positive integer");
    }
    return static_cast<std::uint64_t>(*number);
  }

 private:
  [[nodiscard]] const Json* find(std::string_view key) const {
    if (json_.as_object() == nullptr) return nullptr;
    if (const Json* value = json_.find(key)) return value;
    const Json* inner = json_.find("params");
    return inner != nullptr && inner->as_object() != nullptr ? inner->find(key) : nullptr;
  }

  const Json& json_;
  const SourceTensor& tensor_;
  const std::string& where_;
};

ComfyMarker marker_of(const Json& json, const SourceTensor& weight, std::string where) {
  const MarkerFields fields(json, weight, where);
  ComfyMarker marker;
  marker.weight = &weight;
  marker.format = fields.format();
  marker.is_rotated = fields.is_true("convrot");
  marker.rotation = fields.size("convrot_groupsize").value_or(marker.rotation);
  marker.group_size = fields.size("group_size");
  marker.where = std::move(where);
  return marker;
}

/// Returns whether this is `scaled_fp8`, whose type says how F8 weights were made. Their scales
/// say all that is needed.
bool is_marker_of_file(const SourceTensor& tensor) {
  return part_of(tensor).role == "scaled_fp8" && tensor.info->shape.size() == 1 &&
         tensor.info->shape[0] <= 2;
}

/// The weights that a name without a prefix may mean, by that name.
using Wanted = std::map<std::string_view, std::vector<const SourceTensor*>>;

/// Finds the weights of names that are no modules: those of the modules that end in "." and the
/// name.
void find_suffixes(const Checkpoint& checkpoint, const SafeOpen& file, Wanted& wanted) {
  if (wanted.empty()) return;
  for (const SourceTensor& tensor : checkpoint.tensors()) {
    std::string_view name = tensor.info->name;
    if (tensor.file != &file || !name.ends_with(kWeight)) continue;
    name.remove_suffix(kWeight.size());
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos;
         dot = name.find('.', dot + 1)) {
      const auto found = wanted.find(name.substr(dot + 1));
      if (found != wanted.end()) found->second.push_back(&tensor);
    }
  }
}

void read_header(const SourceTensor& first, Checkpoint& checkpoint,
                 std::vector<ComfyMarker>& markers) {
  const auto& metadata = checkpoint.metadata_of(first);
  const auto text = metadata.find(kHeader);
  if (text == metadata.end()) return;
  const Json json = parse_description(text->second, first, kMaxHeader);
  const Json* layers = json.find("layers");
  if (layers == nullptr || layers->as_object() == nullptr) return;
  Wanted wanted;
  for (const Json::Member& layer : *layers->as_object()) {
    if (checkpoint.find(layer.first, kWeight) == nullptr) wanted[layer.first];
  }
  find_suffixes(checkpoint, *first.file, wanted);
  std::size_t unknown = 0;
  std::string_view example;
  const std::string where = "`" + std::string(kHeader) + "` of the header";
  for (const Json::Member& layer : *layers->as_object()) {
    const SourceTensor* weight = checkpoint.find(layer.first, kWeight);
    if (weight == nullptr) {
      const std::vector<const SourceTensor*>& found = wanted[layer.first];
      if (found.size() == 1) weight = found.front();
      if (found.size() > 1) {
        for (const SourceTensor* each : found) {
          checkpoint.refuse_module(*each, where + " names `" + clipped(layer.first) +
                                              "`, which may be this module or another one");
        }
      } else if (found.empty() && unknown++ == 0) {
        example = layer.first;
      }
    }
    if (weight != nullptr) markers.push_back(marker_of(layer.second, *weight, where));
  }
  if (unknown != 0) {
    checkpoint.warn(where + " names " + counted(unknown, "module") + " without a weight: `" +
                    clipped(example) + "`" + (unknown > 1 ? " ..." : ""));
  }
}

}  // namespace

std::vector<ComfyMarker> read_comfy_markers(Checkpoint& checkpoint) {
  std::vector<ComfyMarker> markers;
  std::map<const SafeOpen*, const SourceTensor*> files;
  const SafeOpen* last = nullptr;
  for (const SourceTensor& tensor : checkpoint.tensors()) {
    if (tensor.file != last) files.try_emplace(last = tensor.file, &tensor);
    if (is_marker_of_file(tensor)) checkpoint.hide(tensor);
    if (!tensor.info->name.ends_with(kMarker)) continue;
    const SourceTensor* weight = checkpoint.find(module_of(tensor), kWeight);
    if (weight == nullptr) continue;
    const std::string where = "`" + clipped(tensor.info->name) + "`";
    if (tensor.info->dtype != Dtype::kU8 || tensor.info->shape.size() != 1) {
      bad_marker(*weight, where, "must be a vector of U8");
    }
    if (tensor.info->nbytes() > kMaxDescription) {
      fail(Errc::limit, tensor.file->path(), tensor.info->name, "it is longer than 64 KiB");
    }
    const StoredBytes text = tensor.bytes({});
    const Json json = parse_description(
        {reinterpret_cast<const char*>(text.bytes.data()), text.bytes.size()}, tensor);
    markers.push_back(marker_of(json, *weight, where));
    checkpoint.hide(tensor);
  }
  for (const auto& [file, tensor] : files) read_header(*tensor, checkpoint, markers);
  const auto meaning = [](const ComfyMarker& marker) {
    return std::tie(marker.format, marker.is_rotated, marker.rotation, marker.group_size);
  };
  std::ranges::stable_sort(markers, {}, [](const ComfyMarker& marker) { return marker.weight; });
  for (std::size_t i = 1; i < markers.size(); ++i) {
    const ComfyMarker& one = markers[i - 1];
    const ComfyMarker& two = markers[i];
    if (one.weight != two.weight || meaning(one) == meaning(two)) continue;
    bad_marker(*one.weight, one.where,
               "and " + two.where + " contradict each other: " + clipped(one.format) + " and " +
                   clipped(two.format));
  }
  const auto same = [](const ComfyMarker& a, const ComfyMarker& b) { return a.weight == b.weight; };
  markers.erase(std::unique(markers.begin(), markers.end(), same), markers.end());
  return markers;
}

}  // namespace safetensors::weights
