// Opening and looking at models.
#include "c/weights.hpp"

#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c/model_source.hpp"
#include "c/options.hpp"
#include "c/path.hpp"
#include "safetensors/weights/options.hpp"

using safetensors::ErrorCode;
using safetensors::fail;
using safetensors::ModelSource;
using safetensors::c::check_pointer;
using safetensors::c::Owned;
using safetensors::c::text_of;
using safetensors::weights::Allocator;
using safetensors::weights::Errc;
using safetensors::weights::Format;
using safetensors::weights::guarded;
using safetensors::weights::ModelOptions;
using safetensors::weights::QuantMode;
using safetensors::weights::QuantParams;
using safetensors::weights::Storage;
using safetensors::weights::WeightInfo;
using safetensors::weights::WeightPart;
using safetensors::weights::WeightProvider;

namespace {

constexpr bool is(Errc fault, int number) { return static_cast<int>(fault) == number; }
static_assert(is(Errc::io, SAFETENSORS_FAULT_IO));
static_assert(is(Errc::bad_magic, SAFETENSORS_FAULT_BAD_MAGIC));
static_assert(is(Errc::version, SAFETENSORS_FAULT_VERSION));
static_assert(is(Errc::truncated, SAFETENSORS_FAULT_TRUNCATED));
static_assert(is(Errc::overflow, SAFETENSORS_FAULT_OVERFLOW));
static_assert(is(Errc::limit, SAFETENSORS_FAULT_LIMIT));
static_assert(is(Errc::duplicate, SAFETENSORS_FAULT_DUPLICATE));
static_assert(is(Errc::bad_name, SAFETENSORS_FAULT_BAD_NAME));
static_assert(is(Errc::bad_type, SAFETENSORS_FAULT_BAD_TYPE));
static_assert(is(Errc::bad_shape, SAFETENSORS_FAULT_BAD_SHAPE));
static_assert(is(Errc::bad_offset, SAFETENSORS_FAULT_BAD_OFFSET));
static_assert(is(Errc::alignment, SAFETENSORS_FAULT_ALIGNMENT));
static_assert(is(Errc::json, SAFETENSORS_FAULT_JSON));
static_assert(is(Errc::config, SAFETENSORS_FAULT_CONFIG));
static_assert(is(Errc::missing_shard, SAFETENSORS_FAULT_MISSING_SHARD));
static_assert(is(Errc::quant_mismatch, SAFETENSORS_FAULT_QUANT_MISMATCH));
static_assert(is(Errc::mixed_types, SAFETENSORS_FAULT_MIXED_TYPES));
static_assert(is(Errc::f16_overflow, SAFETENSORS_FAULT_F16_OVERFLOW));
static_assert(is(Errc::unknown_tensor, SAFETENSORS_FAULT_UNKNOWN_TENSOR));
static_assert(is(Errc::unsupported, SAFETENSORS_FAULT_UNSUPPORTED));
static_assert(safetensors::weights::kErrcCount == SAFETENSORS_FAULT_UNSUPPORTED);

constexpr bool is(Storage storage, int number) { return static_cast<int>(storage) == number; }
static_assert(is(Storage::raw, SAFETENSORS_STORAGE_RAW));
static_assert(is(Storage::mlx_pack, SAFETENSORS_STORAGE_MLX_PACK));
static_assert(is(Storage::ggml_block, SAFETENSORS_STORAGE_GGML_BLOCK));
static_assert(is(Storage::scheme, SAFETENSORS_STORAGE_SCHEME));

constexpr bool is(Format format, int number) { return static_cast<int>(format) == number; }
static_assert(is(Format::hf_safetensors, SAFETENSORS_FORMAT_HF));
static_assert(is(Format::mlx_safetensors, SAFETENSORS_FORMAT_MLX));
static_assert(is(Format::gguf, SAFETENSORS_FORMAT_GGUF));

// C's number is one more: its 0 is "none".
constexpr std::int32_t number_of(QuantMode mode) { return static_cast<std::int32_t>(mode) + 1; }
static_assert(number_of(QuantMode::affine) == SAFETENSORS_QUANT_AFFINE);
static_assert(number_of(QuantMode::mxfp4) == SAFETENSORS_QUANT_MXFP4);
static_assert(number_of(QuantMode::mxfp8) == SAFETENSORS_QUANT_MXFP8);
static_assert(number_of(QuantMode::nvfp4) == SAFETENSORS_QUANT_NVFP4);

/// The allocator of the caller, which is released with it.
class CallerAllocator : public std::enable_shared_from_this<CallerAllocator> {
 public:
  explicit CallerAllocator(Owned<safetensors_allocator> from) noexcept : from_(std::move(from)) {}

  /// Throws: std::bad_alloc; Error kInvalidArgument for memory that is not aligned.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t nbytes) const {
    void* const memory = from_.allocate(from_.context, nbytes);
    if (memory == nullptr) throw std::bad_alloc();
    std::shared_ptr<std::byte> owned(static_cast<std::byte*>(memory),
                                     [self = shared_from_this(), nbytes](std::byte* bytes) {
                                       self->from_.deallocate(self->from_.context, bytes, nbytes);
                                     });
    constexpr std::uintptr_t kAlignment = 64;
    if (reinterpret_cast<std::uintptr_t>(memory) % kAlignment != 0) {
      fail(ErrorCode::kInvalidArgument,
           "the allocator returned memory that is not aligned to 64 bytes");
    }
    return owned;
  }

 private:
  Owned<safetensors_allocator> from_;
};

/// Takes an allocator. Throws: Error kInvalidArgument, and then has not taken it.
Allocator allocator_of(const safetensors_allocator* given) {
  if (given == nullptr) return {};
  const safetensors_allocator copy = safetensors::c::options_of(given, "allocator");
  if (copy.allocate == nullptr || copy.deallocate == nullptr) {
    fail(ErrorCode::kInvalidArgument, "allocator: allocate or deallocate is NULL");
  }
  const auto taken = std::make_shared<const CallerAllocator>(Owned(copy));
  return [taken](std::size_t nbytes) { return taken->allocate(nbytes); };
}

std::optional<QuantParams> quant_of(const safetensors_weights_options& options) {
  const std::int32_t mode = options.quant_mode;
  const bool is_none = mode == SAFETENSORS_QUANT_NONE;
  if (mode < 0 || mode > SAFETENSORS_QUANT_NVFP4 ||
      (is_none && (options.quant_bits != 0 || options.quant_group_size != 0))) {
    fail(ErrorCode::kInvalidArgument,
         "quant_mode is " + std::to_string(mode) + ", with " + std::to_string(options.quant_bits) +
             " bits and groups of " + std::to_string(options.quant_group_size));
  }
  if (is_none) return std::nullopt;
  if (options.quant_bits > INT32_MAX || options.quant_group_size > INT32_MAX) {
    fail(ErrorCode::kInvalidArgument, "quant_bits or quant_group_size is above INT32_MAX");
  }
  return QuantParams{static_cast<QuantMode>(mode - 1), static_cast<int>(options.quant_bits),
                     static_cast<int>(options.quant_group_size)};
}

ModelOptions model_options_of(const safetensors_weights_options* given) {
  const safetensors_weights_options options = safetensors::c::options_of(given, "options");
  ModelOptions result;
  result.allocator = allocator_of(options.allocator);  // first: it is released in any case
  constexpr std::uint32_t kFlags =
      SAFETENSORS_WEIGHTS_LAYOUT_HF | SAFETENSORS_WEIGHTS_KEEP_BF16 |
      SAFETENSORS_WEIGHTS_KEEP_SCALES | SAFETENSORS_WEIGHTS_ALLOW_F16_OVERFLOW |
      SAFETENSORS_WEIGHTS_NO_MMAP | SAFETENSORS_WEIGHTS_LAX_INDEX | SAFETENSORS_WEIGHTS_ALLOW_GAPS;
  safetensors::c::check_flags(options.flags, kFlags);
  const auto has = [&](std::uint32_t flag) { return (options.flags & flag) != 0; };
  if (has(SAFETENSORS_WEIGHTS_LAYOUT_HF)) result.layout = ModelOptions::hf;
  result.bf16_to_f16 = !has(SAFETENSORS_WEIGHTS_KEEP_BF16);
  result.scales_to_f16 = !has(SAFETENSORS_WEIGHTS_KEEP_SCALES);
  result.allow_f16_overflow = has(SAFETENSORS_WEIGHTS_ALLOW_F16_OVERFLOW);
  result.mmap = !has(SAFETENSORS_WEIGHTS_NO_MMAP);
  result.strict_index = !has(SAFETENSORS_WEIGHTS_LAX_INDEX);
  result.allow_gaps = has(SAFETENSORS_WEIGHTS_ALLOW_GAPS);
  if (options.cache_nbytes != 0 && options.cache_nbytes < SIZE_MAX) {
    result.cache_bytes = static_cast<std::size_t>(options.cache_nbytes);
  }
  result.quant = quant_of(options);
  result.choice = {
      .name = std::string(text_of(options.name, options.name_size, "name")),
      .variant = std::string(text_of(options.variant, options.variant_size, "variant"))};
  return result;
}

safetensors_weight weight_of(const safetensors_weights& from, const WeightInfo& info) {
  safetensors_weight weight{};
  weight.name = info.name.c_str();
  weight.name_size = info.name.size();
  weight.source = from.kept.text(info.source);
  weight.source_size = info.source.size();
  weight.type_name = info.type_name.c_str();
  weight.type_name_size = info.type_name.size();
  weight.scheme = from.kept.text(info.scheme);
  weight.scheme_size = info.scheme.size();
  weight.shape = info.shape.data();
  weight.rank = info.shape.size();
  weight.stored_nbytes = info.stored_bytes;
  weight.type = info.code;
  weight.scales_type = info.scales_code;
  weight.storage = static_cast<std::int32_t>(info.storage);
  weight.part_count = static_cast<std::uint32_t>(from.model.part_count(info.name));
  if (info.is_decoded) weight.flags |= SAFETENSORS_WEIGHT_DECODED;
  if (info.quant) {
    weight.quant_mode = number_of(info.quant->mode);
    weight.bits = static_cast<std::uint32_t>(info.quant->bits);
    weight.group_rows = 1;
    weight.group_columns = static_cast<std::uint64_t>(info.quant->group_size);
  } else if (info.storage == Storage::scheme) {
    weight.bits = info.scheme_params.bits;
    weight.group_rows = info.scheme_params.group_rows;
    weight.group_columns = info.scheme_params.group_columns;
    if (info.scheme_params.symmetric) weight.flags |= SAFETENSORS_WEIGHT_SYMMETRIC;
  }
  if (const std::optional<double> offset = from.model.norm_weight_offset_of(info.name)) {
    weight.flags |= SAFETENSORS_WEIGHT_NORM_OFFSET;
    weight.norm_offset = *offset;
  }
  return weight;
}

/// Returns the texts of a list, which are those of the model or of `paths`.
std::vector<std::string_view> texts_of(const WeightProvider& model, std::int32_t list,
                                       std::vector<std::string>& paths) {
  switch (list) {
    case SAFETENSORS_LIST_UNMAPPED:
      return {model.unmapped().begin(), model.unmapped().end()};
    case SAFETENSORS_LIST_EXTRAS:
      return {model.extras().begin(), model.extras().end()};
    case SAFETENSORS_LIST_WARNINGS:
      return {model.warnings().begin(), model.warnings().end()};
    case SAFETENSORS_LIST_FILES:
      for (const std::filesystem::path& file : model.files()) {
        paths.push_back(safetensors::c::utf8_of(file));
      }
      return {paths.begin(), paths.end()};
    default:
      return {};
  }
}

}  // namespace

const char* safetensors_fault_name(std::int32_t fault) {
  if (fault < 1 || fault > SAFETENSORS_FAULT_UNSUPPORTED) return nullptr;
  // The names are literals, which end with a NUL.
  return safetensors::weights::name(static_cast<Errc>(fault)).data();
}

std::int32_t safetensors_weights_open(const char* path, std::size_t path_size,
                                      const safetensors_weights_options* options,
                                      safetensors_weights** weights, safetensors_error* error) {
  return guarded(error, [&] {
    const ModelOptions opened = model_options_of(options);
    check_pointer(weights, 1, "weights");
    *weights = std::make_unique<safetensors_weights>(
                   WeightProvider::open(safetensors::c::path_of(path, path_size), opened))
                   .release();
  });
}

std::int32_t safetensors_weights_open_source(const safetensors_model_source* source,
                                             const char* label, std::size_t label_size,
                                             const safetensors_weights_options* options,
                                             safetensors_weights** weights,
                                             safetensors_error* error) {
  return guarded(error, [&] {
    ModelSource folder;
    try {
      folder = safetensors::c::model_source_of(source, label, label_size);
    } catch (...) {
      (void)model_options_of(options);  // takes and releases the allocator
      throw;
    }
    const ModelOptions opened = model_options_of(options);
    check_pointer(weights, 1, "weights");
    *weights =
        std::make_unique<safetensors_weights>(WeightProvider::open(folder, opened)).release();
  });
}

// NOLINTNEXTLINE(misc-const-correctness): frees it
void safetensors_weights_close(safetensors_weights* weights) { delete weights; }

std::int32_t safetensors_weights_detect(const char* path, std::size_t path_size,
                                        std::int32_t* format, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(format, 1, "format");
    *format = static_cast<std::int32_t>(
        WeightProvider::detect_format(safetensors::c::path_of(path, path_size)));
  });
}

std::int32_t safetensors_weights_look(const safetensors_weights* weights,
                                      safetensors_weights_info* info, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(info, 1, "info");
    const WeightProvider& model = weights->model;
    const std::string_view output = model.output_name();
    *info = {.count = model.tensors().size(),
             .metadata_count = model.metadata().size(),
             .scheme = weights->kept.text(model.scheme()),
             .scheme_size = model.scheme().size(),
             .output_name = weights->kept.text(output),
             .output_name_size = output.size(),
             .format = static_cast<std::int32_t>(model.format()),
             .reserved = 0};
  });
}

const safetensors_text* safetensors_weights_list(const safetensors_weights* weights,
                                                 std::int32_t list, std::size_t* count) {
  const safetensors_text* found = nullptr;
  if (count != nullptr) *count = 0;
  (void)guarded(nullptr, [&] {
    check_pointer(weights, 1, "weights");
    if (list < SAFETENSORS_LIST_UNMAPPED || list > SAFETENSORS_LIST_FILES) return;
    std::vector<std::string> paths;
    const auto& table = weights->kept.table("list " + std::to_string(list),
                                            [&] { return texts_of(weights->model, list, paths); });
    if (table.size() == 0) return;
    if (count != nullptr) *count = table.size();
    found = table.data();
  });
  return found;
}

std::int32_t safetensors_weights_at(const safetensors_weights* weights, std::size_t index,
                                    safetensors_weight* weight, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(weight, 1, "weight");
    const std::vector<WeightInfo>& all = weights->model.tensors();
    safetensors::c::check_index(index, all.size());
    *weight = weight_of(*weights, all[index]);
  });
}

std::int32_t safetensors_weights_find(const safetensors_weights* weights, const char* name,
                                      std::size_t name_size, safetensors_weight* weight,
                                      safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(weight, 1, "weight");
    *weight = weight_of(*weights, weights->model.info(text_of(name, name_size, "name")));
  });
}

std::int32_t safetensors_weights_find_source(const safetensors_weights* weights, const char* source,
                                             std::size_t source_size, safetensors_weight* weight,
                                             safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(weight, 1, "weight");
    *weight =
        weight_of(*weights, weights->model.info_of_source(text_of(source, source_size, "source")));
  });
}

std::int32_t safetensors_weights_part(const safetensors_weights* weights, const char* name,
                                      std::size_t name_size, std::size_t index,
                                      safetensors_part* part, safetensors_error* error) {
  return guarded(error, [&] {
    check_pointer(weights, 1, "weights");
    check_pointer(part, 1, "part");
    const std::string key(text_of(name, name_size, "name"));
    const std::vector<WeightPart>& all =
        weights->kept.parts(key, [&] { return weights->model.parts(key); });
    safetensors::c::check_index(index, all.size());
    const WeightPart& found = all[index];
    *part = {.role = found.role.c_str(),
             .role_size = found.role.size(),
             .source = found.source.c_str(),
             .source_size = found.source.size(),
             .type_name = found.type_name.c_str(),
             .type_name_size = found.type_name.size(),
             .shape = found.shape.data(),
             .rank = found.shape.size(),
             .stored_nbytes = found.stored_bytes,
             .type = found.code,
             .reserved = 0};
  });
}
