#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "safetensors/byte_source.hpp"
#include "safetensors/element.hpp"
#include "safetensors/model_files.hpp"
#include "safetensors/patch.hpp"
#include "safetensors/save.hpp"
#include "support.hpp"

using safetensors::Dtype;
using safetensors::dtype_of;
using safetensors::Element;
using safetensors::ElementRange;
using safetensors::holds;
using safetensors::TensorInfo;

namespace {

/// The dtypes that hold T, by name.
template <typename T>
std::string held() {
  std::string names;
  for (const Dtype dtype : safetensors::all_dtypes()) {
    if (holds<T>(dtype)) names += std::string(safetensors::name(dtype)) + " ";
  }
  return names;
}

TensorInfo info_of(Dtype dtype, std::span<const std::byte> bytes) {
  return {"t", {}, 0, bytes.size(), dtype};
}

}  // namespace

TEST_CASE("the dtypes that a C++ type can read") {
  CHECK(held<double>() == "F64 ");
  CHECK(held<float>() == "F32 ");
  CHECK(held<std::complex<float>>() == "C64 ");
  CHECK(held<std::complex<double>>() == "");
  CHECK(held<std::int64_t>() == "I64 ");
  CHECK(held<std::int32_t>() == "I32 ");
  CHECK(held<std::int16_t>() == "I16 ");
  CHECK(held<std::int8_t>() == "I8 ");
  CHECK(held<std::uint64_t>() == "U64 ");
  CHECK(held<unsigned long long>() == "U64 ");
  CHECK(held<std::uint32_t>() == "U32 ");
  CHECK(held<std::uint16_t>() == "BF16 F16 U16 ");
  CHECK(held<std::uint8_t>() == "F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 F8_E5M2 U8 ");
  CHECK(held<bool>() == "BOOL ");
  CHECK(held<long double>() == "");
  for (const Dtype dtype : safetensors::all_dtypes()) CHECK(holds<std::byte>(dtype));
}

TEST_CASE("the dtype that a C++ type is written as") {
  static_assert(dtype_of<float>() == Dtype::kF32);
  static_assert(dtype_of<std::complex<float>>() == Dtype::kC64);
  static_assert(dtype_of<std::uint16_t>() == Dtype::kU16);  // not one of the halves
  static_assert(dtype_of<std::uint8_t>() == Dtype::kU8);
  static_assert(dtype_of<bool>() == Dtype::kBool);
  static_assert(!dtype_of<std::byte>() && !dtype_of<long double>() && !dtype_of<std::string>());
  static_assert(Element<std::byte> && Element<double> && !Element<long double>);
  static_assert(!Element<const float> && !Element<float*>);
  static_assert(ElementRange<std::vector<float>&> && ElementRange<float (&)[2]>);
  static_assert(ElementRange<std::span<float, 2>>);
  static_assert(!ElementRange<std::vector<float>> && !ElementRange<const std::vector<float>&>);
  static_assert(!ElementRange<std::vector<bool>&>);  // no bools in memory
}

TEST_CASE("16-bit floats, 8-bit floats and packed dtypes can be read as bits") {
  const std::vector<std::byte> bytes = test::pattern(4);
  std::vector<std::uint16_t> halves(2);
  safetensors::copy_elements(info_of(Dtype::kBF16, bytes), bytes, halves);
  CHECK(halves[0] ==
        (std::to_integer<unsigned>(bytes[0]) | std::to_integer<unsigned>(bytes[1]) << 8));
  CHECK(safetensors::elements<std::uint8_t>(info_of(Dtype::kF8E4M3, bytes), bytes).size() == 4);
  std::vector<std::byte> packed(4);
  safetensors::copy_elements(info_of(Dtype::kF4, bytes), bytes, std::span(packed));
  CHECK(packed == bytes);
  CHECK(safetensors::elements<std::byte>(info_of(Dtype::kC64, bytes), bytes).data() ==
        bytes.data());
}

TEST_CASE("the error for an unsupported type names it") {
  const std::vector<std::byte> bytes(8);
  const auto text = [&]<typename T>(T) {
    const auto see = [&] { (void)safetensors::elements<T>(info_of(Dtype::kBF16, bytes), bytes); };
    return std::string(test::error_of(see).what());
  };
  const std::string start = "tensor `t` (BF16) does not hold elements of type ";
  CHECK(text(float{}) == start + "float");
  CHECK(text(double{}) == start + "double");
  CHECK(text(std::complex<float>{}) == start + "std::complex<float>");
  CHECK(text(bool{}) == start + "bool");
  CHECK(text(std::int8_t{}) == start + "std::int8_t");
  CHECK(text(std::uint8_t{}) == start + "std::uint8_t");
  CHECK(text(std::int16_t{}) == start + "std::int16_t");
  CHECK(text(std::uint32_t{}) == start + "std::uint32_t");
  CHECK(text(std::int64_t{}) == start + "std::int64_t");
}

TEST_CASE("a byte other than 0 and 1 is not returned as bool") {
  std::vector<std::byte> bytes = {std::byte{0}, std::byte{1}, std::byte{1}};
  const TensorInfo info = info_of(Dtype::kBool, bytes);
  CHECK(safetensors::elements<bool>(info, bytes)[2]);
  bytes[2] = std::byte{2};
  const auto see = [&] { (void)safetensors::elements<bool>(info, bytes); };
  CHECK(std::string(test::error_of(see).what()) ==
        "tensor `t` (BOOL) has a byte that is neither 0 nor 1 (2): copy its elements");
  bool copied[3] = {};
  safetensors::copy_elements(info, bytes, copied);
  CHECK_FALSE(copied[0]);
  CHECK(copied[2]);
  CHECK(static_cast<int>(copied[2]) == 1);
}

// Whether a call compiles: what it returns would be a view of these arguments.
template <typename Name, typename Shape>
concept MakesTensor = requires(Name&& name, Shape&& shape, const std::vector<std::int8_t>& values) {
  safetensors::tensor_data(std::forward<Name>(name), std::forward<Shape>(shape), values);
};
template <typename Bytes>
concept SeesElements = requires(const TensorInfo& info, Bytes&& bytes) {
  safetensors::elements<std::uint8_t>(info, std::forward<Bytes>(bytes));
};
template <typename Bytes>
concept IsParsed =
    requires(Bytes&& bytes) { safetensors::parse_bytes(std::forward<Bytes>(bytes)); };
template <typename Bytes>
concept MakesSource =
    requires(Bytes&& bytes) { safetensors::MemorySource(std::forward<Bytes>(bytes)); };
template <typename Record, typename Values>
concept MakesPatch = requires(Record&& record, Values&& values) {
  safetensors::PatchRecord(std::forward<Record>(record), std::forward<Values>(values), Dtype::kU8,
                           safetensors::DigestAlgorithm::kSha256);
};
template <typename File>
concept IsTakenApart =
    requires(File&& file) { safetensors::parse_model_file_name(std::forward<File>(file)); };

TEST_CASE("no view of a temporary compiles") {
  using Shape = std::vector<std::uint64_t>;
  static_assert(MakesTensor<const char (&)[2], const Shape&>);
  static_assert(MakesTensor<std::string&, std::array<std::uint64_t, 2>&>);
  static_assert(MakesTensor<std::string_view, std::span<const std::uint64_t>>);
  static_assert(!MakesTensor<std::string, Shape&>);
  static_assert(!MakesTensor<const std::string, Shape&>);
  static_assert(!MakesTensor<std::string_view, Shape>);
  static_assert(!MakesTensor<std::string_view, std::array<std::uint64_t, 2>>);
  static_assert(!MakesTensor<std::string, Shape>);
  using Bytes = std::vector<std::byte>;
  using View = std::span<std::byte>;
  static_assert(SeesElements<Bytes&> && SeesElements<View> && !SeesElements<Bytes>);
  static_assert(IsParsed<const Bytes&> && IsParsed<View> && !IsParsed<Bytes>);
  static_assert(MakesSource<Bytes&> && MakesSource<View> && !MakesSource<Bytes>);
  static_assert(MakesPatch<Bytes&, View> && !MakesPatch<Bytes, View> && !MakesPatch<View, Bytes>);
  static_assert(IsTakenApart<std::string&> && IsTakenApart<const char (&)[2]>);
  static_assert(!IsTakenApart<std::string>);
}

TEST_CASE("characters are not integers of a file") {
  static_assert(!dtype_of<char>() && !dtype_of<wchar_t>() && !dtype_of<char8_t>());
  static_assert(!dtype_of<char16_t>() && !dtype_of<char32_t>());
  static_assert(dtype_of<signed char>() == Dtype::kI8 && dtype_of<unsigned char>() == Dtype::kU8);
}

TEST_CASE("a span becomes a tensor to save") {
  // Elements of several bytes do not compile where the order is not the file's.
  using T = std::conditional_t<std::endian::native == std::endian::little, float, std::int8_t>;
  const std::vector<T> values = {T{1}, T{2}};
  const safetensors::TensorData data = safetensors::tensor_data("t", {2, 1}, values);
  CHECK(data.dtype == dtype_of<T>());
  CHECK(data.bytes.size() == 2 * sizeof(T));
  const safetensors::Buffer file = safetensors::serialize({&data, 1});
  const safetensors::ParsedBytes parsed = safetensors::parse_bytes(file.bytes());
  const TensorInfo* const info = parsed.header.find("t");
  REQUIRE(info != nullptr);
  CHECK(safetensors::elements<T>(*info, parsed.bytes(*info))[1] == T{2});
}
