// Parts of tensors: errors name the tensor and, if there is one, the file.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "safetensors/safe_open.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::Index;
using safetensors::SafeOpen;

namespace {

template <typename Work>
std::string text_of_error(const Work& work) {
  return test::error_of(work).what();
}

}  // namespace

TEST_CASE("errors of a slice name the tensor and the file") {
  const test::TempDir folder;
  const test::fs::path path = folder / "model";
  const std::vector<test::OwnTensor> tensors = {test::tensor_of("weight", Dtype::kF32, {2, 3}),
                                                test::tensor_of("packed", Dtype::kF4, {2, 3})};
  safetensors::save_file(test::views_of(tensors), path);
  const std::string of_tensor =
      "Error during slicing [5] with shape [2, 3]: index 5 out of bounds for tensor dimension #0 "
      "of "
      "size 2: tensor `weight`";
  const std::string of_file = of_tensor + " (in " + path.string() + ")";
  std::vector<float> room(3);
  for (const auto backend : {safetensors::Backend::kMmap, safetensors::Backend::kPread}) {
    const SafeOpen file(path, {backend});
    CHECK(text_of_error([&] { (void)file.get_slice("weight", {Index::at(5)}); }) == of_file);
    CHECK(text_of_error([&] { file.copy_slice_to("weight", {Index::at(5)}, room); }) == of_file);
    const auto error =
        test::error_of([&] { (void)file.get_slice("packed", {Index::all(), Index::at(0)}); });
    CHECK(test::name_of(error.code()) == "kMisalignedSlice");
    CHECK(std::string(error.what()).ends_with(": tensor `packed` (in " + path.string() + ")"));
    const auto view = file.get_tensor("weight");
    CHECK(text_of_error([&] { (void)view.slice({Index::at(5)}); }) == of_tensor);
    CHECK(text_of_error([&] { view.copy_slice_to({Index::at(5)}, room); }) == of_tensor);
  }
}

TEST_CASE("a part equals what resolve() and byte_runs() return") {
  const std::vector<std::uint64_t> shape = {4, 6};
  const safetensors::TensorInfo info = {"t", shape, 0, 48, Dtype::kI16};
  const std::vector<Index> indices = {Index::slice(1, 3), Index::at(2)};
  const safetensors::Part part = safetensors::select_part(info, indices);
  CHECK(part.selection.shape == safetensors::resolve(indices, shape).shape);
  CHECK(part.runs.first == 16);
  CHECK(part.runs.nbytes() == 4);
}
