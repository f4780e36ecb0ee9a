// Saves a file and opens it again, with nothing but the installed package.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <safetensors/safetensors.hpp>
#include <span>
#include <string>
#include <typeinfo>
#include <vector>

namespace {

int failed(const char* what) {
  std::fprintf(stderr, "failed: %s\n", what);
  return 1;
}

/// A sink of this program: its base class is the library's.
struct Text final : safetensors::ByteSink {
  explicit Text(std::string& to) : text(to) {}
  [[nodiscard]] bool seeks() const noexcept override { return false; }
  [[nodiscard]] std::size_t write_at(std::uint64_t, std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return bytes.size();
  }
  void commit(std::uint64_t, bool) override {}
  std::string& text;
};

/// Asks for the type of a source that the library has made.
bool is_in_memory(const safetensors::ByteSource& source) {
  return dynamic_cast<const safetensors::MemorySource*>(&source) != nullptr &&
         typeid(source) == typeid(safetensors::MemorySource);
}

/// Writes a file tensor by tensor, to a sink and to a path.
int write_again(const safetensors::SafeOpen& file, const std::string& path) {
  const safetensors::TensorInfo& info = file.at("weight");
  const safetensors::TensorSpec spec = {info.name, info.shape, info.dtype};
  std::string text;
  safetensors::FileWriter to_text(std::make_unique<Text>(text), safetensors::plan_file({&spec, 1}));
  if (to_text.missing() != std::vector<std::size_t>{0}) return failed("missing");
  const safetensors::TensorView view = file.get_tensor("weight");
  to_text.write(0, view.bytes());
  to_text.commit();
  const auto written = safetensors::parse_bytes(std::as_bytes(std::span(text)));
  if (written.header.tensors().size() != 1) return failed("what a sink received");

  safetensors::FileWriter to_file(safetensors::make_file_sink(path),
                                  safetensors::plan_file({&spec, 1}));
  const safetensors::TensorCopy copy = {0, file.position(info)};
  to_file.copy(*file.source(), {&copy, 1});
  to_file.commit();
  const safetensors::SafeOpen copied(path);
  return copied.header().size() == 1 ? 0 : failed("a copied tensor");
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

  if (write_again(file, path) != 0) return 1;
  if (!is_in_memory(safetensors::MemorySource({})) || is_in_memory(*file.source())) {
    return failed("the type of a source");
  }

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
