// C: patches, what they say, and tensors and files that they are applied to.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c_support.hpp"
#include "patch_support.hpp"
#include "safetensors/sums.hpp"

using safetensors::DigestAlgorithm;
using test::named;

namespace {

struct ClosePatch {
  void operator()(safetensors_patch* patch) const { safetensors_patch_close(patch); }
};
using PatchHandle = std::unique_ptr<safetensors_patch, ClosePatch>;

std::int32_t open_code(const safetensors_file* file, PatchHandle& patch,
                       safetensors_error* error = nullptr) {
  safetensors_patch* opened = nullptr;
  const std::int32_t code = safetensors_patch_open(file, &opened, error);
  patch.reset(opened);
  return code;
}

/// A folder with a model and a patch of it.
struct Folder {
  test::States states{};
  test::TempDir dir{};
  test::fs::path base = dir / "base.safetensors";
  test::fs::path patch = dir / "p.safetensors-patch";
  std::string target = (dir / "target.safetensors").string();

  explicit Folder(DigestAlgorithm algorithm = DigestAlgorithm::kXxh3_128) {
    (void)test::saved(base, test::tensors_in(states.before));
    test::write_text(patch, test::patch_between(states.before, states.after, algorithm).text());
  }
  /// Returns the patch, whose file is closed.
  [[nodiscard]] PatchHandle open() const {
    PatchHandle opened;
    REQUIRE(open_code(test::open(patch, SAFETENSORS_PREAD).get(), opened) == 0);
    return opened;
  }
  [[nodiscard]] std::string wanted() const {
    const std::vector<test::OwnTensor> tensors = test::tensors_in(states.after);
    return test::text_of(safetensors::serialize(test::views_of(tensors)).bytes());
  }
};

safetensors_patch_options with_verify(std::int32_t verify, std::uint32_t flags = 0) {
  auto options = test::sized<safetensors_patch_options>();
  options.verify = verify;
  options.flags = flags;
  return options;
}

std::int32_t apply_file(const Folder& folder, const safetensors_file* base,
                        const safetensors_patch_options* options,
                        safetensors_error* error = nullptr) {
  return safetensors_patch_apply_file(folder.open().get(), base, folder.target.data(),
                                      folder.target.size(), options, error);
}

std::int32_t stop(void* context) { return *static_cast<std::int32_t*>(context); }

}  // namespace

TEST_CASE("C: a patch says what it does to each tensor") {
  const Folder folder;
  const PatchHandle patch = folder.open();
  CHECK(safetensors_patch_count(nullptr) == 0);
  const std::vector<std::string> names = {"blocks", "bytes", "gone", "new", "packed", "shape"};
  REQUIRE(safetensors_patch_count(patch.get()) == names.size());
  std::vector<safetensors_patch_entry> entries(names.size());
  for (int round = 0; round < 2; ++round) {  // what the first gave out stays as it is
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::uint64_t* const before = entries[i].shape;
      REQUIRE(safetensors_patch_at(patch.get(), i, &entries[i], nullptr) == 0);
      if (round == 1) CHECK(entries[i].shape == before);
      CHECK(std::string(entries[i].name, entries[i].name_size) == names[i]);
      CHECK(entries[i].name[entries[i].name_size] == '\0');
      const auto before_it = folder.states.before.find(names[i]);
      const auto after_it = folder.states.after.find(names[i]);
      const auto text = [&](const test::State& state, const auto& found) {
        return found == state.end()
                   ? std::string()
                   : test::digest_of(found->second, DigestAlgorithm::kXxh3_128).text();
      };
      CHECK(entries[i].base == text(folder.states.before, before_it));
      CHECK(entries[i].target == text(folder.states.after, after_it));
    }
  }
  CHECK(entries[0].kind == SAFETENSORS_PATCH_BLOCKS);
  CHECK(entries[0].dtype == SAFETENSORS_BF16);
  CHECK(std::vector<std::uint64_t>(entries[0].shape, entries[0].shape + entries[0].rank) ==
        std::vector<std::uint64_t>{300, 500});
  CHECK(entries[0].units == 150000);
  CHECK(entries[0].changed < 150000 / 40);
  CHECK(entries[2].kind == SAFETENSORS_PATCH_REMOVED);
  CHECK(entries[2].dtype == -1);
  CHECK(entries[2].rank == 0);
  CHECK(entries[3].kind == SAFETENSORS_PATCH_WHOLE);
  CHECK(entries[3].dtype == SAFETENSORS_F64);
  CHECK(entries[3].nbytes == 96 + 16);
  CHECK(entries[4].dtype == -1);
  safetensors_patch_entry entry{};
  CHECK(named(safetensors_patch_at(patch.get(), names.size(), &entry, nullptr)) ==
        "kIndexOutOfBounds");
}

TEST_CASE("C: a patch of memory, of a source and of a model of one file outlives the file") {
  const Folder folder;
  const std::string text = test::read_text(folder.patch);
  const auto patch_of = [&](const test::File& file) {
    for (const auto& [key, state] :
         {std::pair("base", &folder.states.before), std::pair("target", &folder.states.after)}) {
      CHECK(safetensors_metadata_value(file.get(), 0, SAFETENSORS_TEXT(key), nullptr) ==
            test::digest_of(*state, DigestAlgorithm::kXxh3_128).text());
    }
    PatchHandle patch;
    REQUIRE(open_code(file.get(), patch) == 0);
    return patch;
  };
  const auto check = [&](const PatchHandle& patch) {
    const test::File base = test::open(folder.base);
    REQUIRE(safetensors_patch_apply_file(patch.get(), base.get(), folder.target.data(),
                                         folder.target.size(), nullptr, nullptr) == 0);
    CHECK(test::read_text(folder.target) == folder.wanted());
  };
  check(patch_of(test::open_memory(text)));
  safetensors_file* opened = nullptr;
  REQUIRE(safetensors_open_model(SAFETENSORS_TEXT(folder.patch.string().c_str()), nullptr, &opened,
                                 nullptr) == 0);
  check(patch_of(test::File(opened)));

  struct Bytes {
    const std::string& all;
    int releases = 0;
  } bytes{text};
  auto source = test::sized<safetensors_source>();
  source.context = &bytes;
  source.nbytes = text.size();
  source.read = [](void* from, std::uint64_t offset, void* to, std::size_t nbytes,
                   safetensors_error*) {
    const std::string& all = static_cast<const Bytes*>(from)->all;
    return static_cast<std::int64_t>(all.copy(static_cast<char*>(to), nbytes, offset));
  };
  source.release = [](void* from) { ++static_cast<Bytes*>(from)->releases; };
  REQUIRE(safetensors_open_source(&source, SAFETENSORS_TEXT("a label"), nullptr, &opened,
                                  nullptr) == 0);
  PatchHandle patch = patch_of(test::File(opened));
  check(patch);
  CHECK(bytes.releases == 0);
  patch.reset();
  CHECK(bytes.releases == 1);
}

TEST_CASE("C: many threads may use one patch") {
  const Folder folder;
  const PatchHandle patch = folder.open();
  const std::size_t count = safetensors_patch_count(patch.get());
  std::vector<std::vector<const std::uint64_t*>> shapes(4);
  std::vector<std::thread> threads;
  threads.reserve(shapes.size());
  for (std::vector<const std::uint64_t*>& own : shapes) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < count; ++i) {
        safetensors_patch_entry entry{};
        if (safetensors_patch_at(patch.get(), i, &entry, nullptr) == 0) own.push_back(entry.shape);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(shapes[0].size() == count);
  for (const auto& each : shapes) CHECK(each == shapes[0]);
}

TEST_CASE("C: a patch makes the target of a tensor in memory") {
  const Folder folder;
  const PatchHandle patch = folder.open();
  const std::vector<test::OwnTensor> after = test::tensors_in(folder.states.after);
  const std::vector<safetensors_tensor> tensors = test::c_tensors(after);
  for (const std::int32_t verify : {SAFETENSORS_VERIFY_DEFAULT, SAFETENSORS_VERIFY_FULL}) {
    const safetensors_patch_options options = with_verify(verify);
    for (std::size_t i = 0; i < after.size(); ++i) {
      CAPTURE(after[i].name);
      const bool is_kept = after[i].name == "kept";
      const auto old = folder.states.before.find(after[i].name);
      std::vector<std::byte> bytes = old == folder.states.before.end()
                                         ? std::vector<std::byte>(after[i].bytes.size())
                                         : old->second.bytes;
      const auto apply = [&] {
        return named(
            safetensors_patch_apply(patch.get(), &tensors[i], bytes.data(), &options, nullptr));
      };
      CHECK(apply() == (is_kept ? "kTensorNotFound" : "ok"));
      CHECK(bytes == after[i].bytes);
      const bool has_blocks =
          after[i].name == "blocks" || after[i].name == "bytes" || after[i].name == "packed";
      if (has_blocks) CHECK(apply() == "kPatchApplied");
      bytes.assign(bytes.size(), std::byte{9});
      if (has_blocks) CHECK(apply() == "kWrongBase");
      if (has_blocks) CHECK(bytes == std::vector<std::byte>(bytes.size(), std::byte{9}));
    }
  }
}

TEST_CASE("C: a patch makes the file of the target") {
  const Folder folder;
  for (const std::int32_t verify : {SAFETENSORS_VERIFY_DEFAULT, SAFETENSORS_VERIFY_BLOCKS,
                                    SAFETENSORS_VERIFY_FULL, SAFETENSORS_VERIFY_WHOLE}) {
    for (const std::int32_t backend : {SAFETENSORS_MMAP, SAFETENSORS_PREAD}) {
      const test::File base = test::open(folder.base, backend);
      const safetensors_patch_options options =
          with_verify(verify, SAFETENSORS_FSYNC | SAFETENSORS_SUMS);
      REQUIRE(apply_file(folder, base.get(), &options) == 0);
      CHECK(test::read_text(folder.target) == folder.wanted());
      CHECK(safetensors::Sums::read(safetensors::sums_path(folder.target)).size() ==
            folder.states.after.size());
    }
  }
  // Of memory, and of a model that a folder leads to.
  const std::string text = test::read_text(folder.base);
  const test::File memory = test::open_memory(text);
  REQUIRE(apply_file(folder, memory.get(), nullptr) == 0);
  CHECK(test::read_text(folder.target) == folder.wanted());
  safetensors_file* model = nullptr;
  REQUIRE(safetensors_open_model(SAFETENSORS_TEXT(folder.base.string().c_str()), nullptr, &model,
                                 nullptr) == 0);
  const test::File closes(model);
  REQUIRE(apply_file(folder, model, nullptr) == 0);
  const test::File target = test::open(folder.target);
  safetensors_error error{};
  CHECK(named(apply_file(folder, target.get(), nullptr, &error)) == "kPatchApplied");
  CHECK(std::string(error.text).find("p.safetensors-patch: the model has this patch already") !=
        std::string::npos);
  CHECK(std::string(error.text + error.path) == folder.patch.string());
}

TEST_CASE("C: a callback ends a patch, and nothing is written") {
  const Folder folder;
  const test::File base = test::open(folder.base);
  const std::size_t before = folder.dir.count();
  std::int32_t answer = 5;
  auto watch = test::sized<safetensors_watch>();
  watch.context = &answer;
  watch.progress = [](void* context, std::uint64_t, std::uint64_t) { return stop(context); };
  auto options = with_verify(0);
  options.watch = &watch;
  safetensors_error error{};
  CHECK(apply_file(folder, base.get(), &options, &error) == SAFETENSORS_STOPPED);
  CHECK(error.detail == 5);
  CHECK(folder.dir.count() == before);
}

TEST_CASE("C: what is no patch, and arguments that are not allowed") {
  const Folder folder;
  const test::File base = test::open(folder.base);
  PatchHandle refused;
  CHECK(named(open_code(base.get(), refused)) == "kInvalidPatch");
  CHECK(named(open_code(nullptr, refused)) == "kInvalidArgument");
  safetensors_file* opened = nullptr;
  const std::string json = "{}";
  REQUIRE(safetensors_open_header(json.data(), json.size(), 0, &opened, nullptr) == 0);
  CHECK(named(open_code(test::File(opened).get(), refused)) == "kInvalidArgument");
  CHECK(refused == nullptr);
  CHECK(named(safetensors_patch_open(base.get(), nullptr, nullptr)) == "kInvalidArgument");
  safetensors_patch_close(nullptr);

  const PatchHandle patch = folder.open();
  test::OwnTensor tensor = folder.states.before.at("blocks");
  const std::vector<std::byte> bytes = tensor.bytes;
  safetensors_tensor given = test::c_tensors({tensor})[0];
  given.name = tensor.name.c_str();
  given.shape = tensor.shape.data();
  const auto apply = [&](const safetensors_patch* of, const safetensors_tensor* to, void* at,
                         const safetensors_patch_options* options) {
    const std::string code = named(safetensors_patch_apply(of, to, at, options, nullptr));
    CHECK(tensor.bytes == bytes);
    return code;
  };
  CHECK(apply(nullptr, &given, tensor.bytes.data(), nullptr) == "kInvalidArgument");
  CHECK(apply(patch.get(), nullptr, tensor.bytes.data(), nullptr) == "kInvalidArgument");
  CHECK(apply(patch.get(), &given, nullptr, nullptr) == "kInvalidArgument");
  for (const auto& options :
       {with_verify(4), with_verify(-1), with_verify(SAFETENSORS_VERIFY_WHOLE),
        with_verify(0, SAFETENSORS_FSYNC), safetensors_patch_options{}}) {
    CHECK(apply(patch.get(), &given, tensor.bytes.data(), &options) == "kInvalidArgument");
  }
  for (const auto& options : {with_verify(4), with_verify(0, SAFETENSORS_BLOCKS)}) {
    CHECK(named(apply_file(folder, base.get(), &options)) == "kInvalidArgument");
  }
  safetensors_tensor other = given;
  other.dtype = SAFETENSORS_F16;
  CHECK(apply(patch.get(), &other, tensor.bytes.data(), nullptr) == "kWrongBase");
  other = given;
  other.nbytes -= 2;
  CHECK(apply(patch.get(), &other, tensor.bytes.data(), nullptr) == "kWrongBase");
  other = given;
  other.dtype = 99;
  CHECK(apply(patch.get(), &other, tensor.bytes.data(), nullptr) == "kUnsupportedDtype");
  other = given;
  other.name = "gone";
  other.name_size = 4;
  CHECK(apply(patch.get(), &other, tensor.bytes.data(), nullptr) == "kInvalidArgument");
  CHECK(named(safetensors_patch_at(patch.get(), 0, nullptr, nullptr)) == "kInvalidArgument");
  safetensors_patch_entry entry{};
  CHECK(named(safetensors_patch_at(nullptr, 0, &entry, nullptr)) == "kInvalidArgument");
  CHECK(named(apply_file(folder, nullptr, nullptr)) == "kInvalidArgument");
  CHECK(named(safetensors_patch_apply_file(patch.get(), base.get(), "", 0, nullptr, nullptr)) ==
        "kInvalidArgument");
}

TEST_CASE("C: digests that are SHA-256 are not computed, and an error says so") {
  const Folder folder(DigestAlgorithm::kSha256);
  const PatchHandle patch = folder.open();
  test::OwnTensor tensor = folder.states.before.at("blocks");
  const std::vector<std::byte> bytes = tensor.bytes;
  safetensors_tensor given = test::c_tensors({tensor})[0];
  given.name = tensor.name.c_str();
  given.shape = tensor.shape.data();
  const safetensors_patch_options full = with_verify(SAFETENSORS_VERIFY_FULL);
  CHECK(named(safetensors_patch_apply(patch.get(), &given, tensor.bytes.data(), &full, nullptr)) ==
        "kInvalidArgument");
  CHECK(tensor.bytes == bytes);
  CHECK(named(safetensors_patch_apply(patch.get(), &given, tensor.bytes.data(), nullptr,
                                      nullptr)) == "ok");
  CHECK(tensor.bytes == folder.states.after.at("blocks").bytes);
}

TEST_CASE("C: every flipped byte of a patch is an error, in every function") {
  const Folder folder;
  const std::string good = test::read_text(folder.patch);
  const test::File base = test::open(folder.base);
  const std::size_t before = folder.dir.count();
  for (std::size_t at = 0; at < good.size(); at += 1 + good.size() / 400) {
    std::string broken = good;
    broken[at] ^= 4;
    test::write_text(folder.patch, broken);
    CAPTURE(at);
    safetensors_file* opened = nullptr;
    if (test::open_code(folder.patch, SAFETENSORS_PREAD, &opened) != 0) continue;
    const test::File file(opened);
    PatchHandle patch;
    if (open_code(opened, patch) != 0) continue;
    for (std::size_t i = 0; i < safetensors_patch_count(patch.get()); ++i) {
      safetensors_patch_entry entry{};
      (void)safetensors_patch_at(patch.get(), i, &entry, nullptr);
    }
    const safetensors_patch_options whole = with_verify(SAFETENSORS_VERIFY_WHOLE);
    CHECK(safetensors_patch_apply_file(patch.get(), base.get(), folder.target.data(),
                                       folder.target.size(), &whole, nullptr) != 0);
    CHECK(folder.dir.count() == before);
  }
}
