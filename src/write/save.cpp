#include "safetensors/save.hpp"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/text.hpp"
#include "io/file_sink.hpp"
#include "safetensors/detail/folder.hpp"
#include "safetensors/error.hpp"
#include "safetensors/writer.hpp"

namespace safetensors {
namespace {

/// Runs `work` and adds the prefix of upstream's texts to its errors.
template <typename Work>
auto serializing(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw error.with_context("Error while serializing: ");
  }
}

}  // namespace

void save_file(std::span<const TensorData> tensors, const std::filesystem::path& path,
               const Metadata* metadata, const SaveOptions& options) {
  serializing([&] {
    const LayoutPlan plan = plan_layout(tensors, metadata);
    detail::save_by(path, options.interrupt, {}, [&](std::unique_ptr<ByteSink> sink) {
      FileWriter writer(
          std::move(sink), plan,
          {.fsync = options.fsync, .interrupt = options.interrupt, .progress = options.progress});
      for (const std::size_t i : plan.order) writer.write(i, tensors[i].bytes);
      writer.commit();
    });
  });
}

void detail::save_by(const std::filesystem::path& path, const Interrupt& interrupt,
                     const std::function<void(const std::filesystem::path&)>& before_rename,
                     const std::function<void(std::unique_ptr<ByteSink>)>& write,
                     const std::function<void()>& overwrites) {
  const auto replaces = [&] {
    try {
      write(make_file_sink(path, {}, interrupt, before_rename));
      return true;
    } catch (const io::CannotReplace&) {
      return false;
    }
  };
  if (!io::names_open_file(path) && replaces()) return;
  if (overwrites) overwrites();
  write(io::make_overwriting_sink(path, interrupt));
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
  return serializing([&] {
    const LayoutPlan plan = plan_layout(tensors, metadata);
    Buffer file(static_cast<std::size_t>(plan.total_nbytes));
    serialize_to(plan, tensors, file.bytes(), interrupt);
    return file;
  });
}

}  // namespace safetensors
