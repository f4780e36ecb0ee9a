// Uses the weight layer: opens a file, decodes a tensor, and catches both kinds of error.
#include "safetensors/weights/weights.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

namespace weights = safetensors::weights;

// The old names still work, with a warning.
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#elif defined(_MSC_VER)
#pragma warning(push)
#pragma warning(disable : 4996)
#endif
static_assert(std::is_same_v<weights::TensorInfo, weights::WeightInfo>);
static_assert(std::is_same_v<weights::Buffer, weights::WeightBuffer>);
static_assert(std::is_same_v<weights::Metadata, weights::ModelMetadata>);
static_assert(std::is_same_v<weights::Error, weights::WeightsError>);
static_assert(std::is_same_v<weights::OpenOptions, weights::ModelOptions>);
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#elif defined(_MSC_VER)
#pragma warning(pop)
#endif

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc == 2, "a file is needed");
  const auto model = weights::WeightProvider::open(argv[1]);
  require(model.format() == weights::Format::hf_safetensors, "the format");
  for (const std::string& name : model.unmapped()) {
    const weights::WeightInfo& info = model.info(name);
    const weights::WeightBuffer buffer = model.get_tensor(name);
    std::printf("%s %s %zu\n", info.name.c_str(), info.type_name.c_str(), buffer.nbytes());
    std::size_t count = 1;
    for (const std::int64_t size : info.shape) count *= static_cast<std::size_t>(size);
    std::vector<float> values(count);
    model.dequantize(name, values);
  }
  try {
    (void)model.info("absent");
    require(false, "an absent tensor was found");
  } catch (const weights::WeightsError& error) {
    require(error.code() == weights::Errc::unknown_tensor, "the code");
  }
  try {
    (void)weights::WeightProvider::open("absent");
    require(false, "an absent file was opened");
  } catch (const safetensors::Error& error) {  // the base catches it too
    require(error.code() == safetensors::ErrorCode::kIo, "the code of the base");
  }
  return 0;
}
