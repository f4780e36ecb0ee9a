// Compares decoded values with those of gguf-py and mlx: see weights/tests/data/README.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dequant/scale_type.hpp"
#include "dequant_support.hpp"
#include "safetensors/safe_open.hpp"

namespace {

using namespace test;
using safetensors::weights::PackRows;
using safetensors::weights::ScaleType;

void check_gguf(const std::string& name) {
  const rapidjson::Document expected = read_json(weights_data("gguf/" + name + "_expected.json"));
  const std::string file = read_text(weights_data("gguf/" + name + ".gguf"));
  const std::uint64_t alignment = expected["alignment"].GetUint64();
  std::uint64_t data_size = 0;
  for (const auto& member : expected["tensors"].GetObject()) {
    const std::uint64_t end =
        member.value["offset"].GetUint64() + member.value["nbytes"].GetUint64();
    data_size = std::max(data_size, (end + alignment - 1) / alignment * alignment);
  }
  REQUIRE(data_size < file.size());
  for (const auto& member : expected["tensors"].GetObject()) {
    CAPTURE(std::string(member.name.GetString()));
    const auto& tensor = member.value;
    const std::uint32_t type = tensor["type_id"].GetUint();
    const weights::GgmlType* found = weights::find_ggml_type(type);
    REQUIRE(found != nullptr);
    CHECK(found->name == tensor["type"].GetString());
    const std::size_t nbytes = tensor["nbytes"].GetUint64();
    const std::size_t begin = file.size() - data_size + tensor["offset"].GetUint64();
    const auto raw = bytes_of(std::string_view(file).substr(begin, nbytes));
    REQUIRE(sha256(raw) == tensor["sha256_raw"].GetString());
    const std::size_t count = tensor["shape"][0].GetUint64() * tensor["shape"][1].GetUint64();
    const std::size_t blocks = count / found->block_elements;
    REQUIRE(blocks * found->block_bytes == nbytes);
    for (const Kernels* kernels : weights::usable_kernels()) {
      CAPTURE(std::string(kernels->name));
      for (const std::size_t skew : {0U, 1U}) {
        const Skewed from(raw, skew);
        const Skewed floats(count * 4, skew);
        weights::dequantize_blocks(type, from.data(), blocks, Output::f32, floats.data(), {},
                                   *kernels);
        CHECK(digest_of_floats(floats.span()) == tensor["sha256_f32"].GetString());
        for (const Output output : {Output::f16, Output::bf16}) {
          const Skewed halves(count * 2, skew);
          weights::dequantize_blocks(type, from.data(), blocks, output, halves.data(), {},
                                     *kernels);
          CHECK(count_differences(halves.span(), rounded_all(floats.span(), output), output) == 0);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("sha256: examples of the standard") {
  CHECK(sha256(bytes_of("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256(bytes_of("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("dequantising: every type of GGUF gives the values of gguf-py") { check_gguf("types"); }

TEST_CASE("dequantising: types that gguf-py does not read") { check_gguf("types_new"); }

TEST_CASE("dequantising: every pack gives the values of mlx") {
  const rapidjson::Document expected = read_json(weights_data("packs/packs_expected.json"));
  const safetensors::SafeOpen file(weights_data("packs/packs.safetensors"));
  std::size_t count = 0;
  for (const auto& member : expected.GetObject()) {
    const std::string name = member.name.GetString();
    CAPTURE(name);
    const auto& wanted = member.value;
    const auto words = file.get_tensor(name + ".weight");
    const auto scales = file.get_tensor(name + ".scales");
    PackRows pack;
    pack.params = {weights::parse_quant_mode(wanted["mode"].GetString()).value(),
                   wanted["bits"].GetInt(), wanted["group_size"].GetInt()};
    pack.scale_type = weights::scale_type_of(scales.dtype);
    const auto shape = wanted["shape"].GetArray();
    pack.columns = shape[shape.Size() - 1].GetUint64();
    std::uint64_t rows = 1;
    for (rapidjson::SizeType i = 0; i + 1 < shape.Size(); ++i) rows *= shape[i].GetUint64();
    std::vector<Skewed> copies;  // of the exact size, so that ASan detects a read past the end
    copies.reserve(4);
    const auto copy = [&](const safetensors::TensorView& view) {
      return copies.emplace_back(view.bytes(), 1).data();
    };
    pack.words = copy(words);
    pack.scales = copy(scales);
    if (file.find(name + ".biases") != nullptr)
      pack.biases = copy(file.get_tensor(name + ".biases"));
    if (file.find(name + ".global_scale") != nullptr) {
      pack.global_scales = copy(file.get_tensor(name + ".global_scale"));
      pack.rows_per_global_scale = rows;
    }
    for (const Kernels* kernels : weights::usable_kernels()) {
      CAPTURE(std::string(kernels->name));
      const Skewed floats(rows * pack.columns * 4);
      weights::dequantize_pack(pack, rows, Output::f32, floats.data(), {}, *kernels);
      CHECK(digest_of_floats(floats.span()) == wanted["sha256_f32"].GetString());
      for (const Output output : {Output::f16, Output::bf16}) {
        const Skewed halves(rows * pack.columns * 2, 1);
        weights::dequantize_pack(pack, rows, output, halves.data(), {}, *kernels);
        CHECK(count_differences(halves.span(), rounded_all(floats.span(), output), output) == 0);
      }
    }
    ++count;
  }
  CHECK(count == 68);
}

TEST_CASE("BF16 to F16: every pattern, and how many overflow") {
  const rapidjson::Document expected = read_json(weights_data("packs/bf16_to_f16.json"));
  std::vector<std::byte> from;
  for (unsigned pattern = 0; pattern < 65536; ++pattern) {
    from.push_back(static_cast<std::byte>(pattern & 0xFF));
    from.push_back(static_cast<std::byte>(pattern >> 8));
  }
  for (const Kernels* kernels : weights::usable_kernels()) {
    CAPTURE(std::string(kernels->name));
    const Skewed to(from.size(), 1);
    const std::uint64_t overflows = weights::to_f16_values(safetensors::Dtype::kBF16, from.data(),
                                                           65536, to.data(), {}, *kernels);
    CHECK(overflows == expected["n_overflow_to_inf"].GetUint64());
    std::vector<std::byte> numbers;  // without NaN, little-endian
    for (unsigned pattern = 0; pattern < 65536; ++pattern) {
      std::uint16_t half = 0;
      std::memcpy(&half, to.data() + std::size_t{pattern} * 2, 2);
      const bool is_nan = (pattern & 0x7FFF) > 0x7F80;
      CHECK(is_nan16(half, Output::f16) == is_nan);
      if (is_nan) continue;
      numbers.push_back(static_cast<std::byte>(half & 0xFF));
      numbers.push_back(static_cast<std::byte>(half >> 8));
    }
    CHECK(sha256(numbers) == expected["sha256_finite_and_inf"].GetString());
  }
}
