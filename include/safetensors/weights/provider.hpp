// A model on disk, whichever way it came, as named weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/buffer.hpp"
#include "safetensors/export.hpp"
#include "safetensors/weights/buffer.hpp"
#include "safetensors/weights/config.hpp"
#include "safetensors/weights/error.hpp"
#include "safetensors/weights/json.hpp"
#include "safetensors/weights/metadata.hpp"
#include "safetensors/weights/options.hpp"
#include "safetensors/weights/types.hpp"

namespace safetensors::weights {

/// A model, open for reading. Movable; const members are thread safe. Everything it hands out by
/// reference is valid as long as it is; Buffers are valid on their own.
///
/// All errors are weights::Error (or std::bad_alloc, or what an allocator or Interrupt throws), and
/// name file, tensor and what was found. Nothing is handed out before all headers are checked.
class SAFETENSORS_API WeightProvider {
 public:
  /// Opens a directory (MLX or Hugging Face safetensors with config.json, or GGUF), a single
  /// .safetensors or .gguf file, or any part of a split GGUF. Reads headers only. A path that
  /// contains a NUL is refused as bad_name, here and by detect_format.
  static WeightProvider open(const std::filesystem::path& path, const ModelOptions& options = {});
  /// What `path` holds, by content. Throws Error: io, bad_magic (naming what was seen),
  /// missing_shard, unsupported.
  static Format detect_format(const std::filesystem::path& path);

  WeightProvider(WeightProvider&&) noexcept;
  WeightProvider& operator=(WeightProvider&&) noexcept;
  ~WeightProvider();

  [[nodiscard]] Format format() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept;
  /// The files that hold the tensors.
  [[nodiscard]] const std::vector<std::filesystem::path>& files() const noexcept;
  [[nodiscard]] const ModelConfig& config() const noexcept;
  /// All of config.json; nullptr for models without one, and for GGUF: there metadata() has it all.
  [[nodiscard]] const Json* raw_config() const noexcept { return config().raw.get(); }
  /// Those with a canonical name, sorted by it, layers by number.
  [[nodiscard]] const std::vector<WeightInfo>& tensors() const noexcept;
  /// Source names that no rule maps, sorted. All members that take a name take these too.
  [[nodiscard]] const std::vector<std::string>& unmapped() const noexcept;
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept;

  [[nodiscard]] bool has_tensor(std::string_view name) const noexcept;
  /// Throws Error unknown_tensor, which lists names that are near.
  [[nodiscard]] const WeightInfo& info(std::string_view name) const;
  /// info(name).code
  [[nodiscard]] std::uint32_t get_dtype(std::string_view name) const;
  /// "output.weight" if there is that tensor, else "token_embedding.weight" if there is that one,
  /// which then serves as output; else empty.
  [[nodiscard]] std::string_view output_name() const noexcept;

  /// Returns what to add to this stored norm weight before multiplying by it, or nothing when that
  /// is not known. It is config().norm_weight_offset but for two cases: 0 for tensors that are no
  /// norm weights and for the norms of linear attention; nothing for names without a rule in models
  /// whose offset is not 0, as those of a vision tower. Throws Error unknown_tensor.
  [[nodiscard]] std::optional<double> norm_weight_offset_of(std::string_view name) const;

  /// The bytes for a kernel. Raw tensors and GGUF blocks are views of the file's pages; packs are
  /// put together as words, scales, biases; BF16 becomes F16 (see ModelOptions). Kept after the
  /// first call; threads that ask at once share one build. Throws Error: unknown_tensor,
  /// f16_overflow, quant_mismatch (a pack of unknown parameters), io.
  [[nodiscard]] WeightBuffer get_tensor(std::string_view name,
                                        const Interrupt& interrupt = {}) const;
  /// The tensor's bytes as the file has them, without any conversion, whatever quantised it: a view
  /// of the file's pages, or read anew at each call. Of a pack only its words. Throws Error:
  /// unknown_tensor, io.
  [[nodiscard]] WeightBuffer get_stored(std::string_view name,
                                        const Interrupt& interrupt = {}) const;
  /// Several as one, rows of the first axis after another: all words, then all scales, then all
  /// biases. Kept like get_tensor's. Throws Error mixed_types when they differ in anything but
  /// their number of rows: use them one by one then.
  [[nodiscard]] WeightBuffer fuse_weights(std::span<const std::string_view> names,
                                          const Interrupt& interrupt = {}) const;

  /// Values of `rows` rows from `row0` on; -1: all that follow. Rows are the leading axes taken
  /// together, so one expert or a part of a vocabulary can be had alone; a tensor of one axis or
  /// none is one row. `out` must hold exactly their values. By several threads when they are many;
  /// not kept. Throws Error: unknown_tensor, bad_shape (rows or size of `out`), unsupported (a type
  /// or scheme that is not decoded), quant_mismatch, io.
  void dequantize(std::string_view name, std::span<float> out, std::int64_t row0 = 0,
                  std::int64_t rows = -1, const Interrupt& interrupt = {}) const;
  /// The same in F16, as bits: the F32 value rounded once to nearest even.
  void dequantize_f16(std::string_view name, std::span<std::uint16_t> out, std::int64_t row0 = 0,
                      std::int64_t rows = -1, const Interrupt& interrupt = {}) const;
  /// The same in BF16.
  void dequantize_bf16(std::string_view name, std::span<std::uint16_t> out, std::int64_t row0 = 0,
                       std::int64_t rows = -1, const Interrupt& interrupt = {}) const;

  /// Metadata of the GGUF file, or of the first safetensors file.
  [[nodiscard]] const ModelMetadata& metadata() const noexcept;
  /// One value of it; nullptr when there is none.
  [[nodiscard]] const MetaValue* metadata(std::string_view key) const noexcept;
  /// The value as text; nothing when there is none or it is no string.
  [[nodiscard]] std::optional<std::string> get_metadata_string(std::string_view key) const;

  /// Lets go of all kept buffers; those in use stay valid.
  void clear_cache() noexcept;
  [[nodiscard]] CacheStats cache_stats() const noexcept;

 private:
  class Impl;
  explicit WeightProvider(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace safetensors::weights
