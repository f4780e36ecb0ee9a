// C: sums, digests, and files that are compared with them.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "c_support.hpp"
#include "safetensors/sums.hpp"
#include "safetensors/verify.hpp"

using safetensors::Dtype;
using test::named;
using test::OwnTensor;

namespace {

struct CloseSums {
  void operator()(safetensors_sums* sums) const { safetensors_sums_close(sums); }
};
using SumsHandle = std::unique_ptr<safetensors_sums, CloseSums>;

const std::vector<OwnTensor> kFirst = {test::tensor_of("a", Dtype::kF32, {3 << 20}, 1),
                                       test::tensor_of("empty", Dtype::kF16, {0}, 2)};
const std::vector<OwnTensor> kSecond = {test::tensor_of("b", Dtype::kU8, {1000}, 3)};

/// A folder with a model of two files, their index and their sums.
struct Folder {
  test::TempDir dir{};
  test::fs::path first = dir / "model-00001-of-00002.safetensors";
  test::fs::path second = dir / "model-00002-of-00002.safetensors";
  test::fs::path index = dir / "model.safetensors.index.json";
  std::string text = dir.path().string();

  Folder() {
    (void)test::saved(first, kFirst);
    (void)test::saved(second, kSecond);
    test::write_text(index, R"({"weight_map": {"a": ")" + first.filename().string() +
                                R"(", "empty": ")" + first.filename().string() + R"(", "b": ")" +
                                second.filename().string() + R"("}})");
    const auto of_first = sums_of(first), of_second = sums_of(second);
    safetensors::Sums sums;
    (void)sums.add_file(of_first.files()[0]);
    (void)sums.add_file(of_second.files()[0]);
    const auto add = [&](const safetensors::Sums& from, const char* name, std::size_t file) {
      safetensors::TensorSums tensor = *from.find(name);
      tensor.file = file;
      sums.add_tensor(tensor);
    };
    add(of_first, "a", 0);
    add(of_second, "b", 1);
    add(of_first, "empty", 0);
    test::write_text(dir / "model.sums.json", sums.json());
  }
  static safetensors::Sums sums_of(const test::fs::path& path) {
    return safetensors::make_sums(*safetensors::open_source(path), path.filename().string());
  }
  [[nodiscard]] SumsHandle sums() const {
    safetensors_sums* opened = nullptr;
    REQUIRE(safetensors_sums_open(text.data(), text.size(), &opened, nullptr) == 0);
    return SumsHandle(opened);
  }
  [[nodiscard]] std::int32_t open(const safetensors_sums* sums, safetensors_file** model,
                                  safetensors_error* error = nullptr) const {
    auto options = test::sized<safetensors_options>();
    options.sums = sums;
    return safetensors_open_model(text.data(), text.size(), &options, model, error);
  }
};

void flip(const test::fs::path& path, std::size_t from_end) {
  std::string bytes = test::read_text(path);
  bytes[bytes.size() - from_end] ^= 1;
  test::write_text(path, bytes);
}

struct Reports {
  std::vector<std::string> texts;
  std::vector<std::string> tensors;
  std::vector<std::uint64_t> begins;
  std::int32_t answer = 0;
};

std::int32_t take(void* context, const safetensors_damage* damage) {
  auto& to = *static_cast<Reports*>(context);
  to.texts.emplace_back(damage->text);
  to.tensors.emplace_back(damage->tensor);
  to.begins.push_back(damage->begin);
  CHECK(damage->begin < damage->end);
  CHECK(damage->file[0] != '\0');
  return to.answer;
}

std::string verify(const Folder& folder, Reports& reports, safetensors_error* error = nullptr) {
  reports = {.texts = {}, .tensors = {}, .begins = {}, .answer = reports.answer};
  safetensors_file* opened = nullptr;
  REQUIRE(folder.open(nullptr, &opened) == 0);
  const test::File model(opened);
  std::size_t count = 99;
  const std::int32_t code =
      safetensors_verify(opened, folder.sums().get(), take, &reports, &count, nullptr, error);
  if (code == 0) CHECK(count == reports.texts.size());
  if (code != 0) CHECK(count == 99);
  return code < 0 ? std::to_string(code) : named(code);
}

}  // namespace

TEST_CASE("C: digests of sums are those of the tensors") {
  const Folder folder;
  for (const test::fs::path& path :
       {folder.dir.path(), folder.index, folder.dir / "model.sums.json"}) {
    safetensors_sums* opened = nullptr;
    REQUIRE(safetensors_sums_open(SAFETENSORS_TEXT(path.string().c_str()), &opened, nullptr) == 0);
    const SumsHandle sums(opened);
    for (const auto& tensors : {kFirst, kSecond}) {
      for (const safetensors_tensor& tensor : test::c_tensors(tensors)) {
        char wanted[SAFETENSORS_DIGEST_SIZE], found[SAFETENSORS_DIGEST_SIZE];
        REQUIRE(safetensors_digest(&tensor, found, nullptr) == 0);
        REQUIRE(safetensors_sums_digest(opened, tensor.name, tensor.name_size, wanted, nullptr) ==
                0);
        CHECK(std::string(found) == wanted);
        CHECK(std::strlen(wanted) == 41);
      }
    }
    char text[SAFETENSORS_DIGEST_SIZE];
    safetensors_tensor shorter = test::c_tensors(kFirst)[0];
    --shorter.nbytes;
    CHECK(named(safetensors_digest(&shorter, text, nullptr)) == "kInvalidTensorInfo");
    CHECK(named(safetensors_sums_digest(opened, "c", 1, text, nullptr)) == "kTensorNotFound");
  }
  safetensors_sums* opened = nullptr;
  CHECK(named(safetensors_sums_open(SAFETENSORS_TEXT(folder.first.string().c_str()), &opened,
                                    nullptr)) == "kIo");
  test::write_text(folder.dir / "bad.sums.json", "{}");
  CHECK(named(safetensors_sums_open(
            SAFETENSORS_TEXT((folder.dir / "bad.sums.json").string().c_str()), &opened, nullptr)) ==
        "kInvalidHeaderJson");
  CHECK(opened == nullptr);
  safetensors_sums_close(nullptr);
}

TEST_CASE("C: verify reports each range that differs") {
  const Folder folder;
  Reports reports;
  CHECK(verify(folder, reports) == "ok");
  CHECK(reports.texts.empty());
  flip(folder.first, 1);         // the last of its three blocks
  flip(folder.first, 12 << 20);  // and the first
  flip(folder.second, 5);
  CHECK(verify(folder, reports) == "ok");
  CHECK(reports.tensors == std::vector<std::string>{"a", "a", "b"});
  CHECK(reports.begins[1] - reports.begins[0] == 8 << 20);
  CHECK(reports.texts[2].find("tensor `b` is damaged between bytes") != std::string::npos);
  reports.answer = 9;
  safetensors_error error{};
  CHECK(verify(folder, reports, &error) == "-2");
  CHECK(error.detail == 9);
  CHECK(reports.texts.size() == 1);
  reports.answer = 0;
  // Another size, and a file that the model lacks.
  const std::vector<OwnTensor> longer = {test::tensor_of("b", Dtype::kU8, {1001}, 3)};
  test::write_text(folder.second,
                   test::text_of(safetensors::serialize(test::views_of(longer)).bytes()));
  CHECK(verify(folder, reports) == "ok");
  CHECK(reports.texts.back().find("the digests are of another file") != std::string::npos);
  CHECK(reports.tensors.back().empty());
}

TEST_CASE("C: a file that is opened with sums returns no damaged byte") {
  const Folder folder;
  for (const bool is_damaged : {false, true}) {
    if (is_damaged) flip(folder.first, 100);
    SumsHandle sums = folder.sums();
    safetensors_file* opened = nullptr;
    REQUIRE(folder.open(sums.get(), &opened) == 0);
    sums.reset();  // the file needs it no more
    const test::File model(opened);
    const safetensors_tensor a = test::find(model, "a"), b = test::find(model, "b");
    CHECK(a.data == nullptr);
    std::vector<std::byte> to(a.nbytes);
    safetensors_error error{};
    CHECK(named(test::read(opened, a, to.data(), to.size(), &error)) ==
          (is_damaged ? "kDamaged" : "ok"));
    if (is_damaged) CHECK(std::string(error.text + error.subject) == "a");
    CHECK(named(test::read(opened, b, to.data(), 1000)) == "ok");
  }
  const SumsHandle sums = folder.sums();
  auto options = test::sized<safetensors_options>();
  options.sums = sums.get();
  safetensors_file* opened = nullptr;
  const std::string other = (folder.dir / "other.safetensors").string();
  (void)test::saved(other, kSecond);
  CHECK(named(safetensors_open(other.data(), other.size(), &options, &opened, nullptr)) ==
        "kInvalidArgument");
  CHECK(named(safetensors_open_descriptor(0, nullptr, 0, &options, &opened, nullptr)) ==
        "kInvalidArgument");
  (void)test::saved(folder.second, kFirst);
  CHECK(named(safetensors_open(SAFETENSORS_TEXT(folder.second.string().c_str()), &options, &opened,
                               nullptr)) == "kDamaged");
}

TEST_CASE("C: all that sums name is there") {
  const Folder folder;
  const std::string first = folder.first.filename().string();
  const std::string a = R"({"weight_map": {"a": ")" + first + R"(")";
  const SumsHandle sums = folder.sums();
  for (const std::string& index :
       {a + "}}", a + R"(, "b": ")" + folder.second.filename().string() + R"("}})"}) {
    test::write_text(folder.index, index);
    Reports reports;
    CHECK(verify(folder, reports) == "ok");
    CHECK(reports.tensors.back() == "empty");
    const bool has_second = index != a + "}}";
    CHECK(reports.texts.size() == (has_second ? 1 : 2));
    if (!has_second)
      CHECK(reports.texts[0].find("no file model-00002-of-00002") != std::string::npos);
    safetensors_file* opened = nullptr;
    safetensors_error error{};
    CHECK(named(folder.open(sums.get(), &opened, &error)) == "kDamaged");
    CHECK(std::string(error.text + error.subject) == (has_second ? "empty" : "b"));
  }
  // One file that the caller chose need not be all.
  auto options = test::sized<safetensors_options>();
  options.sums = sums.get();
  safetensors_file* opened = nullptr;
  REQUIRE(safetensors_open_model(SAFETENSORS_TEXT(folder.first.string().c_str()), &options, &opened,
                                 nullptr) == 0);
  safetensors_close(opened);
}

TEST_CASE("tensors of which sums have only a SHA-256 are not passed over") {
  const Folder folder;
  safetensors::TensorSums tensor{.name = "b", .file = 0};
  tensor.sha256 = safetensors::Digest::parse("sha256:" + std::string(64, '0'));
  safetensors::Sums sums;
  (void)sums.add_file(Folder::sums_of(folder.second).files()[0]);
  sums.add_tensor(tensor);
  const auto error = test::error_of([&] { (void)safetensors::digests_of(sums, folder.second); });
  CHECK(error.code() == test::ErrorCode::kInvalidArgument);
  CHECK(std::string(error.what())
            .starts_with("the sums have only a SHA-256 of tensor `b`, which `safetensors hash "
                         "--check` compares"));
}
