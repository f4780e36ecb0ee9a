// The text files of a model: config.json and the index of shards. Accepted values are within their
// bounds, and an index names only files below its directory.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.hpp"
#include "dequant/dequant.hpp"
#include "fuzz_input.hpp"
#include "hf/config.hpp"
#include "hf/row_lengths.hpp"
#include "names/names.hpp"
#include "safetensors/shard_index.hpp"
#include "safetensors/weights/error.hpp"

namespace {

using safetensors::weights::Duplicates;
using safetensors::weights::HfConfig;
using safetensors::weights::Json;
using safetensors::weights::Mapped;
using safetensors::weights::ModelConfig;
using safetensors::weights::QuantParams;

bool in_bounds(std::int64_t value) { return value >= 0 && value < (std::int64_t{1} << 31); }
bool in_bounds(const std::optional<std::int64_t>& value) { return !value || in_bounds(*value); }
bool in_bounds(const std::vector<std::int64_t>& values) {
  return std::ranges::all_of(values, [](std::int64_t value) { return in_bounds(value); });
}
bool exists(const std::optional<QuantParams>& quant) {
  return !quant || safetensors::weights::is_known(*quant);
}

void check_config(const Json& json) {
  const HfConfig config = safetensors::weights::read_hf_config(json, &json, "config.json");
  const ModelConfig& model = config.model;
  for (const auto* value :
       {&model.dim, &model.n_layers, &model.n_heads, &model.n_kv_heads, &model.head_dim,
        &model.ffn_dim, &model.vocab_size, &model.max_seq_len, &model.bos_token_id}) {
    fuzz::require(in_bounds(*value), "an integer is within its bounds");
  }
  for (const auto* values : {&model.n_heads_of_layers, &model.n_kv_heads_of_layers,
                             &model.ffn_dim_of_layers, &model.eos_token_ids}) {
    fuzz::require(in_bounds(*values), "integers are within their bounds");
  }
  fuzz::require(exists(model.quantization), "there are packs of these parameters");
  std::vector<std::string_view> names;
  for (const auto& [module, entry] : config.modules) {
    fuzz::require(exists(entry.quant), "there are packs of a module's parameters");
    names.emplace_back(module);
  }
  // Any text may be a tensor's name.
  const std::vector<Mapped> mapped = safetensors::weights::map_hf_names(names);
  const safetensors::weights::RowLengths lengths({}, {}, model);
  for (const Mapped& name : mapped) (void)lengths.of(name.name);
  (void)safetensors::weights::map_gguf_names(names, "llama");
}

/// Checks the core's reader of an index.
void check_shard_index(std::string_view text) {
  const auto index = safetensors::ShardIndex::parse(text);
  for (const std::string& file : index.files()) {
    const std::filesystem::path path(file);
    fuzz::require(path.is_relative() && std::ranges::find(path, "..") == path.end() &&
                      file.find('\0') == std::string::npos && !file.empty(),
                  "a file lies below the index");
  }
  for (std::size_t i = 0; i < index.size(); ++i) {
    fuzz::require(index.file(i) < index.files().size(), "a tensor is in one of the files");
    fuzz::require(i == 0 || index.name(i - 1) < index.name(i), "names are sorted, and stand once");
  }
}

/// Runs a check, which may refuse its input.
template <typename Check>
void refused_or(const Check& check) {
  try {
    check();
  } catch (const safetensors::Error& error) {
    fuzz::require(!safetensors::find_invalid_utf8(error.what()), "an error is text");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  refused_or([&] {
    check_config(
        safetensors::weights::parse_json(text, "config.json", Duplicates::last_counts, {}));
  });
  refused_or([&] { check_shard_index(text); });
  return 0;
}
