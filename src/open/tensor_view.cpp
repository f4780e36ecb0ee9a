#include "safetensors/tensor_view.hpp"

#include <filesystem>
#include <vector>

#include "format/tensor_error.hpp"
#include "open/strided_read.hpp"
#include "safetensors/to_float.hpp"

namespace safetensors {

std::optional<TensorView> TensorView::slice(Indices indices) const {
  // The new view owns its shape, and shares the owner of the name.
  struct Kept {
    std::vector<std::uint64_t> shape;
    std::shared_ptr<const void> names;
  };
  auto [selection, runs] = select_part(info(), indices);
  if (!runs.loops.empty()) return std::nullopt;
  check_runs({&runs, 1}, nbytes(), runs.nbytes());
  auto kept = std::make_shared<const Kept>(Kept{std::move(selection.shape), keeps_names_});
  const std::span<const std::uint64_t> part = kept->shape;
  TensorView view(name, dtype, part,
                  bytes_.subspan(static_cast<std::size_t>(runs.first),
                                 static_cast<std::size_t>(runs.run_nbytes)),
                  std::move(kept), keeps_bytes_);
  view.is_writable_ = is_writable_;
  view.file_ = file_;
  return view;
}

void TensorView::copy_slice_bytes(Indices indices, std::span<std::byte> to) const {
  const ByteRuns runs = select_part(info(), indices).runs;
  detail::check_size(info(), runs.nbytes(), to.size(), file_);
  check_runs({&runs, 1}, nbytes(), to.size());
  copy_runs(bytes_, {&runs, 1}, to, {});
}

void to_float(const TensorView& tensor, std::span<float> to) {
  try {
    to_float(tensor.dtype, tensor.bytes(), to);
  } catch (const Error& error) {
    fail_tensor(error, tensor.name,
                tensor.file_ == nullptr ? std::filesystem::path() : *tensor.file_);
  }
}

std::vector<float> to_float(const TensorView& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.element_count()));
  to_float(tensor, values);
  return values;
}

}  // namespace safetensors
