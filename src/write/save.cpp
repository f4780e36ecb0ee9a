#include "safetensors/save.hpp"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/display_path.hpp"
#include "base/text.hpp"
#include "check/make_sums.hpp"
#include "io/file_sink.hpp"
#include "safetensors/detail/saved_names.hpp"
#include "safetensors/detail/serializing.hpp"
#include "safetensors/detail/write_sums.hpp"
#include "safetensors/error.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/sums.hpp"
#include "safetensors/writer.hpp"

namespace safetensors {

void save_file(std::span<const TensorData> tensors, const std::filesystem::path& path,
               const Metadata* metadata, const SaveOptions& options) {
  const std::unique_ptr<detail::WriteSums> sums = detail::sums_of_save(path, options);
  detail::save_file(tensors, path, metadata, options, *sums);
}

std::unique_ptr<detail::WriteSums> detail::sums_of_save(const std::filesystem::path& path,
                                                        const SaveOptions& options) {
  if (!options.sums) return std::make_unique<WriteSums>();
  if (path.extension() != detail::kModelFileSuffix) {
    fail(ErrorCode::kInvalidArgument, "sums need a file whose name ends with .safetensors",
         {.path = path});
  }
  return std::make_unique<WriteSums>(
      sums_path(path),
      [name = display_path(path.filename()), interrupt = options.interrupt](
          const std::filesystem::path& complete, const std::vector<WriteSums::Written>* written) {
        using Known = std::span<const WriteSums::Written>;
        return make_sums(*open_source(complete), name, interrupt,
                         written == nullptr ? Known() : Known(*written))
            .json();
      });
}

void detail::save_file(std::span<const TensorData> tensors, const std::filesystem::path& path,
                       const Metadata* metadata, const SaveOptions& options, WriteSums& sums) {
  detail::serializing([&] {
    LayoutPlan plan = plan_layout(tensors, metadata);
    const auto replaces = [&] {
      try {
        write_file(std::move(plan), tensors,
                   make_file_sink(path, {}, options.interrupt, sums.before_rename(path)), options,
                   sums);
        return true;
      } catch (const io::CannotReplace&) {
        return false;
      }
    };
    if (!io::names_open_file(path) && replaces()) return;
    sums.overwrites(path);
    // Seldom, so it costs less to plan again than to keep a copy of the plan.
    write_file(plan_layout(tensors, metadata), tensors,
               io::make_overwriting_sink(path, options.interrupt), options, sums);
  });
}

void detail::write_file(LayoutPlan plan, std::span<const TensorData> tensors,
                        std::unique_ptr<ByteSink> sink, const SaveOptions& options,
                        WriteSums& sums) {
  std::vector<WriteSums::Part> parts;
  if (sums.is_wanted()) {
    for (const TensorData& each : tensors) sums.add(each.name, each.dtype, each.shape);
    for (const std::size_t i : plan.order) parts.push_back({i, 0, tensors[i].bytes});
  }
  const std::vector<std::size_t> order = plan.order;
  FileWriter writer(
      std::move(sink), std::move(plan),
      {.fsync = options.fsync, .interrupt = options.interrupt, .progress = options.progress});
  sums.write_beside(parts, [&] {
    for (const std::size_t i : order) writer.write(i, tensors[i].bytes);
  });
  writer.commit();
  sums.commit(options.fsync);
}

void serialize_to(const LayoutPlan& plan, std::span<const TensorData> tensors,
                  std::span<std::byte> to, const Interrupt& interrupt) {
  if (to.size() != plan.total_nbytes) {
    fail(ErrorCode::kInvalidArgument, "the file takes " + counted(plan.total_nbytes, "byte") +
                                          ", the destination has " + grouped(to.size()));
  }
  std::memcpy(to.data(), plan.prologue.data(), plan.prologue.size());
  std::byte* next = to.data() + plan.prologue.size();
  std::vector<CopyPiece> pieces;
  pieces.reserve(tensors.size());
  for (const std::size_t i : plan.order) {
    const std::span<const std::byte> bytes = tensors[i].bytes;
    pieces.push_back({next, bytes.data(), bytes.size()});
    next += bytes.size();
  }
  copy_all(pieces, interrupt);
}

Buffer serialize(std::span<const TensorData> tensors, const Metadata* metadata,
                 const Interrupt& interrupt) {
  return detail::serializing([&] {
    const LayoutPlan plan = plan_layout(tensors, metadata);
    Buffer file(memory_size(plan.total_nbytes));
    serialize_to(plan, tensors, file.bytes(), interrupt);
    return file;
  });
}

}  // namespace safetensors
