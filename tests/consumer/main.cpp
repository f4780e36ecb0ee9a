// Saves a file and opens it again, with nothing but the installed package.
#include <array>
#include <cstdio>
#include <safetensors/safetensors.hpp>
#include <string>
#include <vector>

namespace {

int failed(const char* what) {
  std::fprintf(stderr, "failed: %s\n", what);
  return 1;
}

int use(const std::string& path) {
  const std::vector<float> values = {1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F};
  const std::vector<std::uint64_t> shape = {2, 3};
  const safetensors::TensorData tensor = safetensors::tensor_data("weight", shape, values);
  const safetensors::Metadata metadata = {{"format", "pt"}};
  safetensors::save_file({&tensor, 1}, path, &metadata);

  const safetensors::SafeOpen file(path);
  if (file.keys() != std::vector<std::string_view>{"weight"}) return failed("keys");
  const safetensors::TensorView view = file.get_tensor("weight");
  if (view.data<float>()[4] != 5.0F) return failed("data");
  if (safetensors::name(view.dtype) != "F32") return failed("dtype");

  std::vector<float> converted(6);
  safetensors::to_float(view.dtype, view.bytes(), converted);
  if (converted != values || safetensors::f16_to_float(0xC100) != -2.5F) return failed("to_float");
  if (file.header_json().size() + 8 != file.data_offset()) return failed("header_json");

  const std::array indices = {safetensors::Index::all(), safetensors::Index::at(-1)};
  const safetensors::TensorInfo& info = file.at("weight");
  const safetensors::ByteRuns runs =
      safetensors::byte_runs(safetensors::resolve(indices, info.shape), info.shape, info.dtype);
  std::array<float, 2> column{};
  file.read(info, runs, std::as_writable_bytes(std::span(column)));
  if (column[0] != 3.0F || column[1] != 6.0F) return failed("column");

  const safetensors::TensorView row = file.get_slice("weight", {safetensors::Index::at(1)});
  if (row.shape.size() != 1 || row.data<float>()[0] != 4.0F) return failed("a row");
  column = {};
  file.copy_slice_to("weight", indices, column);
  if (column[1] != 6.0F) return failed("a column, by its type");
  std::vector<float> all(6);
  file.copy_to("weight", all);
  if (all != values) return failed("all elements");
  const safetensors::TensorRead read{&info, std::as_writable_bytes(std::span(all))};
  file.read({&read, 1});
  if (file.header().find_metadata("format") != "pt") return failed("metadata");

  // Thrown inside the library, caught outside by its type: one type for both.
  try {
    (void)file.at("nope");
    return failed("a missing tensor");
  } catch (const safetensors::Error& error) {
    if (error.code() != safetensors::ErrorCode::kTensorNotFound) return failed("code");
    if (safetensors::name(error.code()) != "TENSOR_NOT_FOUND") return failed("name of a code");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return failed("usage: consumer FILE");
  try {
    return use(argv[1]);
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}
