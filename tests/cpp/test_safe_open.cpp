#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "io/file_source.hpp"
#include "posix_support.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/to_float.hpp"

using safetensors::Backend;
using safetensors::ByteRuns;
using safetensors::Dtype;
using safetensors::Error;
using safetensors::ErrorCode;
using safetensors::Index;
using safetensors::SafeOpen;
using safetensors::TensorInfo;
using safetensors::TensorView;
using test::OwnTensor;

namespace {

constexpr Backend kBackends[] = {Backend::kMmap, Backend::kPread};

bool same(const TensorView& view, const OwnTensor& tensor) {
  return view.name == tensor.name && view.dtype == tensor.dtype &&
         std::ranges::equal(view.shape, tensor.shape) &&
         std::ranges::equal(view.bytes(), tensor.bytes);
}

}  // namespace

TEST_CASE("every way to read a tensor gives the same bytes on both backends") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const test::fs::path path = test::save_tensors(folder, tensors);
  for (const Backend backend : kBackends) {
    const SafeOpen file(path, {backend});
    CHECK(file.backend() == backend);
    CHECK(file.path() == path);
    CHECK(file.header().size() == tensors.size());
    for (const OwnTensor& tensor : tensors) {
      CAPTURE(tensor.name);
      const TensorInfo* const info = file.find(tensor.name);
      REQUIRE(info != nullptr);
      CHECK(&file.at(tensor.name) == info);
      CHECK(same(file.get_tensor(tensor.name), tensor));
      CHECK(same(file.get_tensor(*info), tensor));
      std::vector<std::byte> bytes(tensor.bytes.size());
      file.read(*info, bytes);
      CHECK(bytes == tensor.bytes);
      bytes.emplace_back();
      CHECK(test::outcome_of([&] { file.read(*info, bytes); }) == "kInvalidArgument");
    }
    std::uint64_t position = 0;
    for (const TensorView& view : file.get_tensors()) {
      CHECK(file.at(view.name).begin == position);
      position = file.at(view.name).end;
      const auto tensor = std::ranges::find(tensors, view.name, &OwnTensor::name);
      REQUIRE(tensor != tensors.end());
      CHECK(same(view, *tensor));
    }
  }
}

TEST_CASE("keys are sorted by bytes") {
  const test::TempDir folder;
  const SafeOpen file(test::save_tensors(folder, test::some_tensors()));
  const std::vector<std::string_view> wanted = {"",   "a",  "b",      "empty",
                                                "f4", "f6", "scalar", "\xC3\xA9\n\""};
  CHECK(file.keys() == wanted);
}

TEST_CASE("errors about the dtype of a tensor name it and its file") {
  const test::TempDir folder;
  const test::fs::path path = test::save_tensors(folder, test::some_tensors());
  std::vector<float> floats(100);
  for (const Backend backend : kBackends) {
    const SafeOpen file(path, {.backend = backend});
    const TensorView view = file.get_tensor("f6");
    std::vector<TensorView> views = file.get_tensors();
    views.push_back(view);
    views.push_back(file.get_slice("f6", {Index::ellipsis()}));
    views.push_back(view.slice({Index::ellipsis()}).value());
    std::vector<std::pair<ErrorCode, Error>> errors;
    for (const TensorView& each : views) {
      if (each.name != "f6") continue;
      CAPTURE(errors.size());
      const auto add = [&errors](ErrorCode code, const auto& call) {
        errors.emplace_back(code, test::error_of(call));
      };
      add(ErrorCode::kUnsupportedDtype, [&] { to_float(each, floats); });
      add(ErrorCode::kInvalidArgument, [&] { (void)each.data<float>(); });
      add(ErrorCode::kInvalidArgument, [&] { each.copy_to(floats); });
      add(ErrorCode::kInvalidArgument, [&] { each.copy_slice_to({Index::ellipsis()}, floats); });
      add(ErrorCode::kInvalidArgument, [&] { file.copy_to("f6", floats); });
    }
    CHECK(errors.size() == 20);
    for (const auto& [code, error] : errors) {
      CHECK(error.code() == code);
      CHECK(error.path() == path);
      CHECK(error.subject() == "f6");
      const std::string text = error.what();
      CHECK(text.find("tensor `f6`") != std::string::npos);
      CHECK(text.ends_with(" (in " + path.string() + ")"));
    }
    const TensorView f4 = file.get_tensor("f4");
    std::vector<float> own(static_cast<std::size_t>(f4.element_count()));
    std::vector<float> same_values = own;
    to_float(f4, own);
    safetensors::to_float(f4.dtype, f4.bytes(), same_values);
    CHECK(own == same_values);
  }
}

TEST_CASE("a missing tensor is an error") {
  const test::TempDir folder;
  const test::fs::path path = test::save_tensors(folder, test::some_tensors());
  const SafeOpen file(path);
  CHECK(file.find("nope") == nullptr);
  const Error error = test::error_of([&] { (void)file.at("nope"); });
  CHECK(error.code() == ErrorCode::kTensorNotFound);
  CHECK(std::string(error.what()) ==
        "File does not contain tensor nope (in " + path.string() + ")");
  CHECK(test::outcome_of([&] { (void)file.get_tensor("nope"); }) == "kTensorNotFound");
  CHECK(&file.header().at("f4") == file.find("f4"));
  const Error of_header = test::error_of([&] { (void)file.header().at("nope"); });
  CHECK(of_header.code() == ErrorCode::kTensorNotFound);
  CHECK(of_header.subject() == "nope");
  CHECK(std::string(of_header.what()) == "File does not contain tensor nope");
}

TEST_CASE("views outlive the handle and the file") {
  for (const Backend backend : kBackends) {
    const test::TempDir folder;
    const std::vector<OwnTensor> tensors = test::some_tensors();
    const test::fs::path path = test::save_tensors(folder, tensors);
    auto file = std::make_unique<SafeOpen>(path, safetensors::OpenOptions{backend});
    const SafeOpen copy = *file;
    const TensorView view = file->get_tensor("b");
    const std::vector<TensorView> views = file->get_tensors();
    file.reset();
    CHECK(same(copy.get_tensor("b"), tensors[0]));
    test::fs::remove(path);
    CHECK(same(view, tensors[0]));
    CHECK(same(copy.get_tensor("b"), tensors[0]));
    for (const TensorView& each : views) {
      CHECK(same(each, *std::ranges::find(tensors, each.name, &OwnTensor::name)));
    }
  }
}

TEST_CASE("writes to a tensor do not reach the file, nor with pread another tensor") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const test::fs::path path = test::save_tensors(folder, tensors);
  const std::string before = test::read_text(path);
  for (const Backend backend : kBackends) {
    const SafeOpen file(path, {backend});
    const TensorView view = file.get_tensor("b");
    view.writable_bytes()[0] ^= std::byte{0xFF};
    const TensorView again = file.get_tensor("b");
    CHECK((again.bytes()[0] == view.bytes()[0]) == (backend == Backend::kMmap));
    CHECK(test::read_text(path) == before);
  }
}

TEST_CASE("errors name the file and begin as upstream's do") {
  const test::TempDir folder;
  const test::fs::path path = folder / "bad";
  test::write_text(path, "12345");
  for (const Backend backend : kBackends) {
    const Error error = test::error_of([&] { const SafeOpen file(path, {backend}); });
    CHECK(error.code() == ErrorCode::kHeaderTooSmall);
    const std::string text = error.what();
    CHECK(text.starts_with("Error while deserializing header: header too small"));
    CHECK(text.ends_with(" (in " + path.string() + ")"));
    const Error missing = test::error_of([&] { const SafeOpen file(folder / "no", {backend}); });
    CHECK(missing.code() == ErrorCode::kIo);
    CHECK(missing.os_error() == ENOENT);
    CHECK(std::string(missing.what()) == "No such file or directory: " + (folder / "no").string());
  }
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(test::outcome_of([&] { const SafeOpen file(folder / "pipe"); }) == "kNotRegularFile");
}

TEST_CASE("headers that are longer than the first read, or end with it") {
  const test::TempDir folder;
  for (const std::size_t size : {65'000U, 65'420U, 65'465U, 65'536U, 200'000U}) {
    for (std::size_t more = 0; more < 16; ++more) {
      const std::vector<OwnTensor> tensors = {
          test::tensor_of(std::string(size + more, 'n'), Dtype::kU8, {5})};
      const SafeOpen file(test::save_tensors(folder, tensors), {Backend::kPread});
      CHECK(same(file.get_tensor(tensors[0].name), tensors[0]));
    }
  }
}

TEST_CASE("a file opened from a descriptor leaves it to the caller") {
  const test::TempDir folder;
  const std::vector<OwnTensor> tensors = test::some_tensors();
  const test::fs::path path = test::save_tensors(folder, tensors);
  for (const Backend backend : kBackends) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const SafeOpen file(fd, "label", {backend});
    CHECK(::close(fd) == 0);
    CHECK(same(file.get_tensor("b"), tensors[0]));
    CHECK(file.path() == "label");
  }
}

TEST_CASE("mmap keeps no descriptor, pread one until the file is closed") {
  const test::TempDir folder;
  const test::fs::path path = test::save_tensors(folder, test::some_tensors());
  test::write_text(folder / "bad", test::file_of("{}", 3));
  const std::size_t before = test::open_descriptors();
  {
    const SafeOpen mapped(path, {Backend::kMmap});
    CHECK(test::open_descriptors() == before);
    const SafeOpen file(path, {Backend::kPread});
    CHECK(test::open_descriptors() == before + 1);
    const SafeOpen copy = file;
    CHECK(test::open_descriptors() == before + 1);
  }
  for (const Backend backend : kBackends) {
    CHECK(test::outcome_of([&] { const SafeOpen file(folder / "bad", {backend}); }) != "ok");
  }
  CHECK(test::open_descriptors() == before);
}

TEST_CASE("a file truncated after opening is noticed by pread") {
  const test::TempDir folder;
  const test::fs::path path =
      test::save_tensors(folder, std::vector{test::tensor_of("a", Dtype::kU8, {1000})});
  const SafeOpen file(path, {Backend::kPread});
  test::fs::resize_file(path, test::fs::file_size(path) - 1);
  CHECK(test::outcome_of([&] { (void)file.get_tensor("a"); }) == "kFileChanged");
  CHECK(test::outcome_of([&] { (void)file.get_tensors(); }) == "kFileChanged");
}

#if defined(__linux__)
TEST_CASE("a file truncated after it was mapped: copies fail, an access ends the process") {
  const test::TempDir folder;
  const test::fs::path path =
      test::save_tensors(folder, std::vector{test::tensor_of("a", Dtype::kU8, {100, 1000}),
                                             test::tensor_of("b", Dtype::kU8, {1})});
  const auto shorten = [&](std::uintmax_t size) { test::fs::resize_file(path, size); };
  const auto with_file = [&](const auto& work) {
    return test::in_child([&] {
      const SafeOpen file(path);
      shorten(50'000);
      return work(file);
    });
  };
  const std::string whole = test::read_text(path);
  const int tells = with_file([](const SafeOpen& file) {
    return safetensors::is_truncated(file.mapping()->bytes()) ? 0 : 1;
  });
  if (tells != 0) {
    MESSAGE("skipped: this system cannot tell that a page is gone");
    return;
  }
  test::write_text(path, whole);
  CHECK(with_file([](const SafeOpen& file) {
          std::vector<std::byte> to(100'000);
          const Error error = test::error_of([&] { file.read(file.at("a"), to); });
          if (error.code() != ErrorCode::kFileChanged) return 1;
          if (std::string(error.what()).find("truncated after it was opened") == std::string::npos)
            return 2;
          if (std::string(error.what()).find(file.path().native()) == std::string::npos) return 3;
          return 0;
        }) == 0);
  test::write_text(path, whole);
  CHECK(with_file([](const SafeOpen& file) {
          const auto outcome = [&](ByteRuns runs) {
            runs.concatenate();
            std::vector<std::byte> to(runs.nbytes());
            return test::outcome_of([&] { file.read(file.at("a"), runs, to); });
          };
          if (outcome({0, 40'000, {}}) != "ok") return 1;  // the remaining bytes can be read
          if (outcome({60'000, 10, {}}) != "kFileChanged") return 2;
          if (outcome({0, 10, {{100, 1000}}}) != "kFileChanged") return 3;
          if (outcome({60'000, 0, {}}) != "ok") return 4;
          std::vector<std::byte> one(1);
          if (test::outcome_of([&] { file.read(file.at("b"), one); }) != "kFileChanged") return 5;
          // The rest of the last page reads as zeros.
          const TensorView view = file.get_tensor("a");
          return view.bytes()[50'000] == std::byte{0} ? 0 : 6;
        }) == 0);
  test::write_text(path, whole);
  CHECK(with_file([](const SafeOpen& file) {
          const TensorView view = file.get_tensor("a");
          ::signal(SIGBUS, SIG_DFL);
          return static_cast<int>(view.bytes().back());
        }) == 256 + SIGBUS);
  // A file that is replaced, as save_file does, is another file: nothing changes for the mapping.
  test::write_text(path, whole);
  const SafeOpen file(path);
  (void)test::save_tensors(folder, std::vector{test::tensor_of("c", Dtype::kU8, {1})});
  const TensorView view = file.get_tensor("a");
  CHECK(test::text_of(view.bytes()) == test::text_of(test::pattern(100'000)));
}
#endif

TEST_CASE("an entry of another file is refused if this file lacks its bytes") {
  const test::TempDir folder;
  const SafeOpen other(
      test::save_tensors(folder, std::vector{test::tensor_of("a", Dtype::kU8, {100})}));
  const TensorInfo reversed{"b", {}, 8, 0, Dtype::kU8};
  for (const Backend backend : kBackends) {
    safetensors::save_file({}, folder / "f");
    const SafeOpen file(folder / "f", {backend});
    for (const TensorInfo* info : {other.find("a"), &reversed}) {
      CHECK(test::outcome_of([&] { (void)file.get_tensor(*info); }) == "kInvalidArgument");
      std::vector<std::byte> bytes(100);
      CHECK(test::outcome_of([&] { file.read(*info, bytes); }) == "kInvalidArgument");
    }
  }
}
