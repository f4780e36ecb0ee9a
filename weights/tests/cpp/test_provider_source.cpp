// WeightProvider with files that the program opens.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "safetensors/weights/provider.hpp"
#include "support.hpp"

using safetensors::ByteSource;
using safetensors::ModelSource;
using safetensors::weights::Errc;
using safetensors::weights::WeightBuffer;
using safetensors::weights::WeightInfo;
using safetensors::weights::WeightProvider;
using safetensors::weights::WeightsError;

namespace {

namespace fs = std::filesystem;

fs::path data(std::string_view name) {
  return fs::path(SAFETENSORS_SOURCE_DIR) / "weights" / "tests" / "data" / name;
}

/// Reads a file in memory without lending the memory, until it is told to throw.
class Reading final : public ByteSource {
 public:
  explicit Reading(std::string bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const noexcept override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    if (throws) throw std::runtime_error("of the program");
    std::memcpy(to.data(), bytes_.data() + offset, to.size());
  }

  static inline std::atomic<bool> throws = false;

 private:
  std::string bytes_;
};

/// Bytes at an odd address, which is where a member of an archive may be.
std::shared_ptr<const ByteSource> lending(const std::string& bytes) {
  const auto kept = std::make_shared<const std::string>("x" + bytes);
  return std::make_shared<const safetensors::MemorySource>(
      std::as_bytes(std::span(*kept)).subspan(1), kept);
}

using Wrap = std::function<std::shared_ptr<const ByteSource>(const std::string& bytes)>;

/// Returns the files of a folder whose names begin with `start`.
ModelSource source_of(const fs::path& folder, const std::string& start, const Wrap& wrap) {
  ModelSource source{.folder = "label"};
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.starts_with(start)) source.names.push_back(name);
  }
  source.open = [folder, wrap](const std::string& name) {
    return wrap(test::read_text(folder / name));
  };
  return source;
}

/// Returns the decoded values as bytes, because some are NaN.
std::string values_of(const WeightProvider& model, const WeightInfo& info) {
  std::size_t count = 1;
  for (const std::int64_t size : info.shape) count *= static_cast<std::size_t>(size);
  std::vector<float> values(count);
  model.dequantize(info.name, values);
  return test::text_of(std::as_bytes(std::span(values)));
}

}  // namespace

TEST_CASE("sources that lend their memory give views, others copies, all with the same bytes") {
  for (const auto& [folder, start, path] :
       {std::tuple{"gguf", "llama_q4_k_m.gguf", "gguf/llama_q4_k_m.gguf"},
        std::tuple{"gguf", "llama_split_q4_0-", "gguf/llama_split_q4_0-00001-of-00003.gguf"},
        std::tuple{"mlx/llama_mixed", "", "mlx/llama_mixed"},
        std::tuple{"mlx/llama_sharded", "", "mlx/llama_sharded"},
        std::tuple{"schemes/awq", "", "schemes/awq"},
        std::tuple{"schemes/fp8_blocks", "", "schemes/fp8_blocks"}}) {
    CAPTURE(std::string(path));
    const auto local = WeightProvider::open(data(path));
    for (const bool lends : {true, false}) {
      const Wrap wrap = lends ? Wrap(lending) : Wrap([](const std::string& bytes) {
        return std::make_shared<const Reading>(bytes);
      });
      std::vector<WeightBuffer> kept;
      {
        const auto model = WeightProvider::open(source_of(data(folder), start, wrap));
        CHECK(model.path().parent_path() == (fs::is_directory(data(path)) ? "" : "label"));
        CHECK(model.files().front().parent_path() == "label");
        CHECK(model.warnings() == local.warnings());
        REQUIRE(model.tensors().size() == local.tensors().size());
        for (const WeightInfo& info : model.tensors()) {
          CAPTURE(info.name);
          kept.push_back(model.get_tensor(info.name));
          CHECK(kept.back().is_view() == (lends && local.get_tensor(info.name).is_view()));
          CHECK(model.get_stored(info.name).is_view() == lends);
          if (info.is_decoded) CHECK(values_of(model, info) == values_of(local, info));
        }
      }
      for (std::size_t i = 0; i < kept.size(); ++i) {  // they outlive the model
        CHECK(
            std::ranges::equal(kept[i].bytes(), local.get_tensor(local.tensors()[i].name).bytes()));
      }
    }
  }
}

TEST_CASE("an opener and sources that throw, or give nothing") {
  for (const char* folder : {"mlx/llama_sharded", "gguf"}) {
    const Wrap reading = [](const std::string& bytes) {
      return std::make_shared<const Reading>(bytes);
    };
    ModelSource source = source_of(data(folder), *folder == 'g' ? "llama_q8_0.gguf" : "", reading);
    const auto open = source.open;
    {
      const auto model = WeightProvider::open(source);
      const std::string name = model.tensors().front().name;
      Reading::throws = true;
      CHECK_THROWS_WITH_AS((void)model.get_tensor(name), "of the program", std::runtime_error);
      Reading::throws = false;
      CHECK(model.get_tensor(name).nbytes() > 0);  // the next call works
    }
    source.open = [](const std::string&) -> std::shared_ptr<const ByteSource> {
      throw std::logic_error("a bug of the program");
    };
    CHECK_THROWS_AS((void)WeightProvider::open(source), std::logic_error);
    source.open = [](const std::string&) { return nullptr; };
    CHECK_THROWS_WITH_AS((void)WeightProvider::open(source),
                         doctest::Contains("the program opened no file (in label/"), WeightsError);
    source.open = {};
    CHECK_THROWS_AS((void)WeightProvider::open(source), WeightsError);
    source.open = [](const std::string&) -> std::shared_ptr<const ByteSource> {
      throw safetensors::Error(safetensors::ErrorCode::kDamaged, "the archive is damaged");
    };
    try {
      (void)WeightProvider::open(source);
      FAIL("no error");
    } catch (const WeightsError& error) {
      CHECK(error.code() == Errc::io);
      CHECK(static_cast<const safetensors::Error&>(error).code() ==
            safetensors::ErrorCode::kDamaged);
      CHECK(error.path().parent_path() == "label");
    }
  }
}
