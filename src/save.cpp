#include "safetensors/save.hpp"

#include <cstring>
#include <string>

#include "base/text.hpp"
#include "io/file_writer.hpp"
#include "safetensors/error.hpp"

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

std::span<const std::byte> prologue_of(const LayoutPlan& plan) {
  return std::as_bytes(std::span(plan.prologue));
}

}  // namespace

void save_file(std::span<const TensorData> tensors, const std::filesystem::path& path,
               const Metadata* metadata, const SaveOptions& options) {
  serializing([&] {
    const LayoutPlan plan = plan_layout(tensors, metadata);
    io::FileContent content;
    content.total_nbytes = plan.total_nbytes;
    content.pieces.reserve(tensors.size() + 1);
    content.pieces.push_back(prologue_of(plan));
    for (const std::size_t i : plan.order) content.pieces.push_back(tensors[i].bytes);
    io::write_file(path, content, {options.fsync, options.interrupt, options.progress});
  });
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
