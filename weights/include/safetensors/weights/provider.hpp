// A model on disk, in any supported format, as named weights.
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

/// A model that is open for reading: its configuration, and its tensors under canonical names.
///
/// Throws: WeightsError for every fault of a file or of an argument, naming the file, the tensor
///   and what was found; std::bad_alloc; and what an allocator, Interrupt or ByteSource of the
///   program throws.
/// Thread safety: several threads may call const members at once. A forked process may use a
///   provider of its parent; its cache is empty.
/// Lifetime: references and views are valid until the provider is destroyed. Buffers stay valid on
///   their own.
/// Safe for untrusted input: all headers are checked before open() returns, and memory is allocated
///   for what a file contains, never for what it claims.
class SAFETENSORS_API WeightProvider {
 public:
  /// Opens a directory (safetensors files of MLX or Hugging Face with config.json, or GGUF), a
  /// single .safetensors or .gguf file, or any part of a split GGUF model. Reads headers only.
  ///
  /// Safe for untrusted input.
  /// Throws: bad_name if the path contains a NUL; what detect_format() throws; and the codes of a
  ///   damaged or contradictory file (see Errc).
  static WeightProvider open(const std::filesystem::path& path, const ModelOptions& options = {});
  /// Opens the model of a folder whose files the program opens itself: its safetensors files, with
  /// config.json and such beside them, or its only GGUF model. Names that `source.names` lacks are
  /// asked for only if they are shards of an index, or parts of a split GGUF model. Calls
  /// `source.open` only before it returns, for safetensors files by several threads at once. The
  /// sources that it gives are kept until the provider, and all buffers that are views of their
  /// memory, are destroyed.
  ///
  /// Safe for untrusted input.
  /// Throws: the codes of open() of a path; whatever `source.open` and its sources throw: an Error
  ///   as WeightsError, with the nearest code.
  static WeightProvider open(const ModelSource& source, const ModelOptions& options = {});
  /// Returns the format of the model at `path`, by its content: gguf also of a directory that has
  /// several GGUF models, of which open() takes none.
  ///
  /// Throws: bad_name if the path contains a NUL; io; bad_magic, naming what was found;
  ///   missing_shard; unsupported.
  static Format detect_format(const std::filesystem::path& path);
  /// Returns the GGUF models of a directory, in the order of their names: *.gguf files that are not
  /// hidden, and of each split model the first part that is there.
  ///
  /// Throws: bad_name if the path contains a NUL; io.
  static std::vector<std::filesystem::path> gguf_models(const std::filesystem::path& directory);

  WeightProvider(WeightProvider&&) noexcept;
  WeightProvider& operator=(WeightProvider&&) noexcept;
  ~WeightProvider();

  [[nodiscard]] Format format() const noexcept;
  /// Returns the quantisation scheme of the largest number of tensors, such as "fp8", or an empty
  /// text. Single tensors: WeightInfo::scheme.
  [[nodiscard]] std::string_view scheme() const noexcept;
  /// Returns the quantisation method of the configuration if it is not decoded, else an empty text.
  /// Floats of such a model can be read, but a model of plain tensors needs not have these values:
  /// layers of some methods round or transform them when the model runs.
  [[nodiscard]] std::string_view undecoded_method() const noexcept;
  [[nodiscard]] const std::filesystem::path& path() const noexcept;
  /// Returns the files that contain the tensors.
  [[nodiscard]] const std::vector<std::filesystem::path>& files() const noexcept;
  [[nodiscard]] const ModelConfig& config() const noexcept;
  /// Returns the whole config.json, or nullptr for models without one, such as GGUF: see
  /// metadata().
  [[nodiscard]] const Json* raw_config() const noexcept { return config().raw.get(); }
  /// Returns the tensors that have a canonical name, sorted by it; layers are sorted by number.
  [[nodiscard]] const std::vector<WeightInfo>& tensors() const noexcept;
  /// Returns the names in the file that no rule maps, sorted. Members that take a name accept them.
  [[nodiscard]] const std::vector<std::string>& unmapped() const noexcept;
  /// Returns the names of scales of activations and caches, sorted. They are no weights and not in
  /// unmapped(). Members that take a name accept them.
  [[nodiscard]] const std::vector<std::string>& extras() const noexcept;
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept;

  [[nodiscard]] bool has_tensor(std::string_view name) const noexcept;
  /// Returns the description of a tensor.
  ///
  /// Throws: unknown_tensor, with a text that lists similar names.
  [[nodiscard]] const WeightInfo& info(std::string_view name) const;
  /// Returns the description of the tensor with this name in the file, which of several parts is
  /// that of the first; if several have it, the first in the order of tensors().
  ///
  /// Throws: unknown_tensor.
  [[nodiscard]] const WeightInfo& info_of_source(std::string_view source) const;
  /// Returns the tensors of the file that make up a weight, in the order of the sections of
  /// get_tensor's buffer: several for packs and schemes, else one.
  ///
  /// Throws: unknown_tensor.
  [[nodiscard]] std::vector<WeightPart> parts(std::string_view name) const;
  /// Returns parts(name).size(), without making them. Throws: unknown_tensor.
  [[nodiscard]] std::size_t part_count(std::string_view name) const;
  /// Returns info(name).code. Throws: unknown_tensor.
  [[nodiscard]] std::uint32_t get_dtype(std::string_view name) const;
  /// Returns the name of the tensor that computes the logits: "output.weight" if it exists, else
  /// "token_embedding.weight" if that exists, else an empty name.
  [[nodiscard]] std::string_view output_name() const noexcept;

  /// Returns the number to add to this stored norm weight before multiplying by it, or nothing if
  /// it is not known. It is config().norm_weight_offset with two exceptions. It is 0 for tensors
  /// that are not norm weights and for the norms of linear attention. It is unknown for unmapped
  /// names, and for those of a vision tower, in models whose offset is not 0.
  ///
  /// Throws: unknown_tensor.
  [[nodiscard]] std::optional<double> norm_weight_offset_of(std::string_view name) const;

  /// Returns the bytes of a tensor for a compute kernel. Plain tensors and GGUF blocks are views of
  /// the mapped file, or of the memory of a ByteSource. Packs are assembled as words, scales and
  /// biases, weights of a scheme as their parts, unchanged. Other BF16 becomes F16 unless
  /// ModelOptions says otherwise. The buffer is cached; threads that ask for it at the same time
  /// share one build.
  ///
  /// Throws: unknown_tensor; f16_overflow; quant_mismatch for a pack with unknown parameters; io.
  [[nodiscard]] WeightBuffer get_tensor(std::string_view name,
                                        const Interrupt& interrupt = {}) const;
  /// Returns the bytes of a tensor as stored, in any quantisation scheme: a view of the mapped
  /// file, or newly read at each call. For a pack, returns its words only, for a weight of a scheme
  /// its first part. In safetensors files, also accepts the name of each tensor of the files, such
  /// as those of parts().
  ///
  /// Throws: unknown_tensor; io.
  [[nodiscard]] WeightBuffer get_stored(std::string_view name,
                                        const Interrupt& interrupt = {}) const;
  /// Returns the bytes of one of parts(name) as stored: a view of the mapped file, or newly read at
  /// each call.
  ///
  /// Throws: unknown_tensor, also for a part that does not exist; io.
  [[nodiscard]] WeightBuffer get_part(std::string_view name, std::size_t index,
                                      const Interrupt& interrupt = {}) const;
  /// Returns several tensors as one, concatenated along the first axis: all words, then all scales,
  /// then all biases; of weights of a scheme part by part. The buffer is cached like get_tensor's.
  ///
  /// Throws: mixed_types if they differ in more than their number of rows, or if their scheme does
  /// not store its parts by rows; and what get_tensor throws.
  [[nodiscard]] WeightBuffer fuse_weights(std::span<const std::string_view> names,
                                          const Interrupt& interrupt = {}) const;

  /// Decodes `rows` rows, starting with row `row0`, to F32; -1 decodes all remaining rows. A row is
  /// one index of all axes but the last, so one expert, or a part of a vocabulary, can be decoded
  /// alone. A tensor of one axis or none is one row. Large results are decoded by several threads.
  /// The result is not cached.
  ///
  /// Requires: `out` has exactly the size of the values.
  /// Throws: unknown_tensor; bad_shape for rows that do not exist or a wrong size of `out`;
  ///   unsupported for a type or scheme that is not decoded; quant_mismatch; io.
  void dequantize(std::string_view name, std::span<float> out, std::int64_t row0 = 0,
                  std::int64_t rows = -1, const Interrupt& interrupt = {}) const;
  /// Decodes to F16, as bits: the F32 value rounded once to nearest even. Otherwise as
  /// dequantize().
  void dequantize_f16(std::string_view name, std::span<std::uint16_t> out, std::int64_t row0 = 0,
                      std::int64_t rows = -1, const Interrupt& interrupt = {}) const;
  /// Decodes to BF16, as bits, rounded in the same way. Otherwise as dequantize().
  void dequantize_bf16(std::string_view name, std::span<std::uint16_t> out, std::int64_t row0 = 0,
                       std::int64_t rows = -1, const Interrupt& interrupt = {}) const;

  /// Returns the metadata of the GGUF file, or of the first safetensors file.
  [[nodiscard]] const ModelMetadata& metadata() const noexcept;
  /// Returns one value of the metadata; nullptr if there is none.
  [[nodiscard]] const MetaValue* metadata(std::string_view key) const noexcept;
  /// Returns one value of the metadata; nothing if there is none, or if it is no string.
  [[nodiscard]] std::optional<std::string> get_metadata_string(std::string_view key) const;

  /// Releases all cached buffers. Buffers in use stay valid.
  void clear_cache() noexcept;
  [[nodiscard]] CacheStats cache_stats() const noexcept;

 private:
  class Impl;
  explicit WeightProvider(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace safetensors::weights
