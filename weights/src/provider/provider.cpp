#include "safetensors/weights/provider.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "base/checked.hpp"
#include "base/made_once.hpp"
#include "base/name_suggestions.hpp"
#include "base/text.hpp"
#include "common/fail.hpp"
#include "gguf/set.hpp"
#include "model/backend.hpp"
#include "model/norm_offset.hpp"
#include "provider/buffer_cache.hpp"
#include "provider/formats.hpp"

namespace safetensors::weights {
namespace {

/// Allocates by the caller's allocator if there is one.
std::shared_ptr<std::byte> allocate(const Allocator& allocator, std::size_t nbytes) {
  if (allocator) return allocator(nbytes);
  auto memory = std::make_shared<safetensors::Buffer>(nbytes);
  std::byte* data = memory->data();
  return {std::move(memory), data};
}

/// Makes a buffer with one section.
WeightBuffer buffer_of(StoredBytes stored) {
  return {stored.bytes, {stored.bytes.size()}, stored.is_view, std::move(stored.owner)};
}

}  // namespace

class WeightProvider::Impl {
 public:
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  Impl(const Files& files, const std::filesystem::path& path, const ModelOptions& options)
      : backend_(open_backend(files, path, options)),
        allocator_(options.allocator),
        cache_(options.cache_bytes) {
    const Model& model = backend_->model();
    by_name_.resize(model.tensors.size() + model.others.size());
    std::iota(by_name_.begin(), by_name_.end(), std::uint32_t{0});
    // A canonical name takes precedence over an equal name of another tensor in the file: it comes
    // first, and the sort is stable.
    std::stable_sort(by_name_.begin(), by_name_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return model.tensor(a).name < model.tensor(b).name;
    });
    unmapped_.reserve(model.others.size() - model.extras.size());
    std::map<std::string_view, std::size_t> schemes;
    for (const WeightInfo& info : model.tensors) {
      if (!info.scheme.empty()) ++schemes[info.scheme];
    }
    const auto most = std::ranges::max_element(schemes, {}, [](const auto& s) { return s.second; });
    if (most != schemes.end()) scheme_ = most->first;
    auto extra = model.extras.begin();  // they are in the order of the others
    for (const WeightInfo& info : model.others) {
      if (extra != model.extras.end() && *extra == info.name) {
        ++extra;
      } else {
        unmapped_.push_back(info.name);
      }
    }
  }

  [[nodiscard]] const Model& model() const noexcept { return backend_->model(); }
  [[nodiscard]] const std::vector<std::string>& unmapped() const noexcept { return unmapped_; }
  [[nodiscard]] std::string_view scheme() const noexcept { return scheme_; }
  [[nodiscard]] BufferCache& cache() const noexcept { return cache_; }

  /// Returns the index of a name, or nothing.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept {
    const auto found = std::ranges::lower_bound(
        by_name_, name, {},
        [&](std::uint32_t i) -> std::string_view { return model().tensor(i).name; });
    if (found == by_name_.end() || model().tensor(*found).name != name) return std::nullopt;
    return *found;
  }

  [[nodiscard]] std::size_t at(std::string_view name) const {
    if (const auto index = find(name)) return *index;
    std::vector<std::string_view> names;
    names.reserve(by_name_.size());
    for (const std::uint32_t i : by_name_) {
      const WeightInfo& info = model().tensor(i);
      if (info.source == name) {
        fail(Errc::unknown_tensor, model().path, name,
             "that is a name in the file; here the tensor is `" + clipped(info.name) + "`");
      }
      names.emplace_back(info.name);
    }
    fail(Errc::unknown_tensor, model().path, name,
         "there is no such tensor" + name_suggestions(name, names));
  }

  [[nodiscard]] const WeightInfo& at_source(std::string_view source) const {
    const auto source_of = [&](std::uint32_t i) { return model().tensor(i).source; };
    const std::vector<std::uint32_t>& sorted = by_source();
    const auto found = std::ranges::lower_bound(sorted, source, {}, source_of);
    if (found == sorted.end() || source_of(*found) != source) {
      fail(Errc::unknown_tensor, model().path, source, "no tensor has this name in the file");
    }
    return model().tensor(*found);
  }

  [[nodiscard]] WeightBuffer stored(std::string_view name, const Interrupt& interrupt) const {
    if (!find(name)) {
      std::optional<StoredBytes> part = backend_->stored_part(name, interrupt);
      if (part) return buffer_of(std::move(*part));
    }
    return buffer_of(backend_->stored(at(name), 0, interrupt));
  }

  [[nodiscard]] WeightBuffer part(std::string_view name, std::size_t index,
                                  const Interrupt& interrupt) const {
    const std::size_t tensor = at(name);
    const std::size_t count = backend_->part_count(tensor);
    if (index >= count) {
      fail(Errc::unknown_tensor, model().path, name,
           "it has " + std::to_string(count) + " parts, and no part " + std::to_string(index));
    }
    return buffer_of(backend_->stored(tensor, index, interrupt));
  }

  [[nodiscard]] std::vector<WeightPart> parts(std::size_t tensor) const {
    return backend_->parts(tensor);
  }
  [[nodiscard]] std::size_t part_count(std::size_t tensor) const {
    return backend_->part_count(tensor);
  }

  [[nodiscard]] WeightBuffer build(std::size_t tensor, const Interrupt& interrupt) const {
    if (!allocator_) {
      if (std::optional<StoredBytes> stored = backend_->view(tensor, interrupt)) {
        return buffer_of(std::move(*stored));
      }
    }
    return build_fused(std::span(&tensor, 1), interrupt);
  }

  /// Concatenates the tensors section by section:
  ///
  ///     words 0 | words 1 | ... | scales 0 | scales 1 | ... | biases 0 | biases 1 | ...
  [[nodiscard]] WeightBuffer build_fused(std::span<const std::size_t> tensors,
                                         const Interrupt& interrupt) const {
    std::vector<WeightBuffer::Sections> each;
    WeightBuffer::Sections sums{};
    for (const std::size_t tensor : tensors) {
      each.push_back(backend_->sections(tensor));
      for (std::size_t s = 0; s < sums.size(); ++s) sums[s] += each.back()[s];
    }
    const std::size_t nbytes = std::accumulate(sums.begin(), sums.end(), std::size_t{0});
    if (nbytes == 0) return {};
    std::shared_ptr<std::byte> memory = allocate(allocator_, nbytes);
    std::span<std::byte> rest(memory.get(), nbytes);
    for (std::size_t s = 0; s < sums.size(); ++s) {
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        const std::span<std::byte> to = rest.first(each[t][s]);
        if (!to.empty()) backend_->write(tensors[t], s, to, interrupt);
        rest = rest.subspan(to.size());
      }
    }
    const std::span<const std::byte> bytes(memory.get(), nbytes);
    return {bytes, sums, false, std::move(memory)};
  }

  [[nodiscard]] WeightBuffer fuse(std::span<const std::string_view> names,
                                  const Interrupt& interrupt) const {
    if (names.empty()) fail(Errc::mixed_types, model().path, {}, "there is nothing to fuse");
    BufferCache::Key key;
    for (const std::string_view name : names) key.push_back(at(name));
    // Neighbours, because a group of rows that is not full may only be the last.
    for (std::size_t i = 1; i < key.size(); ++i) check_fits(key[i - 1], key[i]);
    if (key.size() == 1) return get(key.front(), interrupt);
    return cache_.get(key, [&] { return build_fused(key, interrupt); });
  }

  [[nodiscard]] WeightBuffer get(std::size_t tensor, const Interrupt& interrupt) const {
    return cache_.get({tensor}, [&] { return build(tensor, interrupt); });
  }

  void dequantize(std::string_view name, Output output, std::span<std::byte> out, std::int64_t row0,
                  std::int64_t rows, const Interrupt& interrupt) const {
    const std::size_t tensor = at(name);
    const WeightInfo& info = model().tensor(tensor);
    const std::uint64_t all = row_count(info.shape);
    const auto begin = static_cast<std::uint64_t>(row0);
    if (row0 < 0 || begin > all || rows < -1 ||
        (rows >= 0 && static_cast<std::uint64_t>(rows) > all - begin)) {
      fail(Errc::bad_shape, model().path, info.name,
           std::to_string(rows) + " rows from row " + std::to_string(row0) + " on are not within " +
               std::to_string(all) + " rows");
    }
    const std::uint64_t end = rows < 0 ? all : begin + static_cast<std::uint64_t>(rows);
    const std::size_t value_size = size_of(output);
    // No overflow: shapes were checked against the size of the file.
    const std::uint64_t values = (end - begin) * row_length(info.shape);
    if (values != out.size() / value_size) {
      fail(Errc::bad_shape, model().path, info.name,
           std::to_string(values) + " values do not fit into room for " +
               std::to_string(out.size() / value_size));
    }
    if (values == 0) return;
    backend_->dequantize(tensor, {begin, end}, output, out.data(), interrupt);
  }

 private:
  /// Returns the indexes of all tensors in the order of their names in the file. Few programs need
  /// it.
  [[nodiscard]] const std::vector<std::uint32_t>& by_source() const {
    return by_source_.get([&] {
      std::vector<std::uint32_t> sorted(by_name_.size());
      std::iota(sorted.begin(), sorted.end(), std::uint32_t{0});
      std::ranges::stable_sort(sorted, {},
                               [&](std::uint32_t i) { return model().tensor(i).source; });
      return sorted;
    });
  }

  void check_fits(std::size_t first, std::size_t next) const {
    const WeightInfo& a = model().tensor(first);
    const WeightInfo& b = model().tensor(next);
    const auto tail = [](const WeightInfo& info) {
      return std::span(info.shape).subspan(std::min<std::size_t>(1, info.shape.size()));
    };
    if (backend_->same_kind(first, next) && a.shape.size() == b.shape.size() && !a.shape.empty() &&
        std::ranges::equal(tail(a), tail(b))) {
      return;
    }
    std::string text = "it is " + described(next) + " and cannot be fused with `" + a.name +
                       "`, which is " + described(first);
    const std::uint64_t block = a.scheme_params.group_rows;
    if (block > 1 && !a.shape.empty() && static_cast<std::uint64_t>(a.shape.front()) % block != 0) {
      text +=
          ": only the last one may have rows that are not whole blocks of " + std::to_string(block);
    }
    fail(Errc::mixed_types, model().path, b.name, text);
  }
  [[nodiscard]] std::string described(std::size_t tensor) const {
    const WeightInfo& info = model().tensor(tensor);
    std::string text = info.type_name;
    if (info.quant) text += " in groups of " + std::to_string(info.quant->group_size);
    text += " " + safetensors::shown(std::span(info.shape));
    const bool has_scale = info.storage == Storage::ggml_block && part_count(tensor) > 1;
    return has_scale ? text + " with a scale beside it" : text;
  }

  std::unique_ptr<Backend> backend_;
  Allocator allocator_;
  std::vector<std::uint32_t> by_name_;  ///< indexes of tensors
  MadeOnce<std::vector<std::uint32_t>> by_source_;
  std::vector<std::string> unmapped_;
  std::string_view scheme_;  // a constant
  mutable BufferCache cache_;
};

WeightProvider::WeightProvider(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
WeightProvider::WeightProvider(WeightProvider&&) noexcept = default;
WeightProvider& WeightProvider::operator=(WeightProvider&&) noexcept = default;
WeightProvider::~WeightProvider() = default;

namespace {

/// System calls would truncate the path at a NUL, and open another file.
void check_path(const std::filesystem::path& path) {
  if (path.native().find(std::filesystem::path::value_type{}) == std::string::npos) return;
  fail(Errc::bad_name, path, {}, "the path contains a NUL");
}

}  // namespace

WeightProvider WeightProvider::open(const std::filesystem::path& path,
                                    const ModelOptions& options) {
  check_path(path);
  return WeightProvider(std::make_unique<Impl>(Files(), path, options));
}

WeightProvider WeightProvider::open(const ModelSource& source, const ModelOptions& options) {
  return WeightProvider(std::make_unique<Impl>(Files(source), source.folder, options));
}

Format WeightProvider::detect_format(const std::filesystem::path& path) {
  check_path(path);
  return format_of(path);
}

std::vector<std::filesystem::path> WeightProvider::gguf_models(
    const std::filesystem::path& directory) {
  check_path(directory);
  return weights::gguf_models(Files(), directory);
}

Format WeightProvider::format() const noexcept { return impl_->model().format; }
std::string_view WeightProvider::scheme() const noexcept { return impl_->scheme(); }
std::string_view WeightProvider::undecoded_method() const noexcept {
  return impl_->model().undecoded_method;
}
const std::filesystem::path& WeightProvider::path() const noexcept { return impl_->model().path; }
const std::vector<std::filesystem::path>& WeightProvider::files() const noexcept {
  return impl_->model().files;
}
const ModelConfig& WeightProvider::config() const noexcept { return impl_->model().config; }
const std::vector<WeightInfo>& WeightProvider::tensors() const noexcept {
  return impl_->model().tensors;
}
const std::vector<std::string>& WeightProvider::unmapped() const noexcept {
  return impl_->unmapped();
}
const std::vector<std::string>& WeightProvider::extras() const noexcept {
  return impl_->model().extras;
}
const std::vector<std::string>& WeightProvider::warnings() const noexcept {
  return impl_->model().warnings;
}

bool WeightProvider::has_tensor(std::string_view name) const noexcept {
  return impl_->find(name).has_value();
}
const WeightInfo& WeightProvider::info(std::string_view name) const {
  return impl_->model().tensor(impl_->at(name));
}
const WeightInfo& WeightProvider::info_of_source(std::string_view source) const {
  return impl_->at_source(source);
}
std::vector<WeightPart> WeightProvider::parts(std::string_view name) const {
  return impl_->parts(impl_->at(name));
}
std::size_t WeightProvider::part_count(std::string_view name) const {
  return impl_->part_count(impl_->at(name));
}
std::uint32_t WeightProvider::get_dtype(std::string_view name) const { return info(name).code; }
std::string_view WeightProvider::output_name() const noexcept {
  for (const std::string_view name : {"output.weight", "token_embedding.weight"}) {
    if (has_tensor(name)) return name;
  }
  return {};
}

std::optional<double> WeightProvider::norm_weight_offset_of(std::string_view name) const {
  const std::size_t tensor = impl_->at(name);
  const bool is_mapped = tensor < impl_->model().tensors.size();
  return norm_offset_of(impl_->model().tensor(tensor), is_mapped, config().norm_weight_offset);
}

WeightBuffer WeightProvider::get_tensor(std::string_view name, const Interrupt& interrupt) const {
  return impl_->get(impl_->at(name), interrupt);
}
WeightBuffer WeightProvider::get_stored(std::string_view name, const Interrupt& interrupt) const {
  return impl_->stored(name, interrupt);
}
WeightBuffer WeightProvider::get_part(std::string_view name, std::size_t index,
                                      const Interrupt& interrupt) const {
  return impl_->part(name, index, interrupt);
}
WeightBuffer WeightProvider::fuse_weights(std::span<const std::string_view> names,
                                          const Interrupt& interrupt) const {
  return impl_->fuse(names, interrupt);
}

void WeightProvider::dequantize(std::string_view name, std::span<float> out, std::int64_t row0,
                                std::int64_t rows, const Interrupt& interrupt) const {
  impl_->dequantize(name, Output::f32, std::as_writable_bytes(out), row0, rows, interrupt);
}
void WeightProvider::dequantize_f16(std::string_view name, std::span<std::uint16_t> out,
                                    std::int64_t row0, std::int64_t rows,
                                    const Interrupt& interrupt) const {
  impl_->dequantize(name, Output::f16, std::as_writable_bytes(out), row0, rows, interrupt);
}
void WeightProvider::dequantize_bf16(std::string_view name, std::span<std::uint16_t> out,
                                     std::int64_t row0, std::int64_t rows,
                                     const Interrupt& interrupt) const {
  impl_->dequantize(name, Output::bf16, std::as_writable_bytes(out), row0, rows, interrupt);
}

const ModelMetadata& WeightProvider::metadata() const noexcept { return impl_->model().metadata; }
const MetaValue* WeightProvider::metadata(std::string_view key) const noexcept {
  return metadata().find(key);
}
std::optional<std::string> WeightProvider::get_metadata_string(std::string_view key) const {
  const MetaValue* value = metadata(key);
  const auto text = value == nullptr ? std::nullopt : value->as_string();
  return text ? std::optional<std::string>(*text) : std::nullopt;
}

void WeightProvider::clear_cache() noexcept { impl_->cache().clear(); }
CacheStats WeightProvider::cache_stats() const noexcept { return impl_->cache().stats(); }

}  // namespace safetensors::weights
