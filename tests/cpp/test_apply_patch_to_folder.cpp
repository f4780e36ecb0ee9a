// Patches of models of several files. Not on Windows, as model_writer.hpp.
#include <doctest/doctest.h>

#include <exception>
#include <string>
#include <vector>

#include "c_support.hpp"
#include "model_saves.hpp"
#include "patch_support.hpp"
#include "safetensors/apply_patch.hpp"
#include "safetensors/verify.hpp"

using safetensors::ApplyPatchOptions;
using safetensors::PatchVerify;

namespace {

constexpr PatchVerify kAll[] = {PatchVerify::kBlocks, PatchVerify::kFull, PatchVerify::kWhole};
/// The tensors of each file in the order of their bytes; "new" comes with the patch.
const std::vector<std::vector<std::string>> kShards = {
    {"gone", "kept", "packed"}, {"blocks", "shape"}, {"bytes", "new"}};

using Contents = std::map<std::string, std::string>;

std::string shard_name(const std::string& name, std::size_t number) {
  return name + "-0000" + std::to_string(number + 1) + "-of-00003.safetensors";
}

/// Returns the files of a state: each has metadata of its own.
Contents shards_of(const test::State& state, const std::string& name, bool with_index) {
  Contents files;
  std::string map;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < kShards.size(); ++i) {
    std::vector<test::OwnTensor> tensors;
    for (const std::string& tensor : kShards[i]) {
      const auto found = state.find(tensor);
      if (found == state.end()) continue;
      tensors.push_back(found->second);
      total += found->second.bytes.size();
      map +=
          (map.empty() ? "\n    \"" : ",\n    \"") + tensor + "\": \"" + shard_name(name, i) + '"';
    }
    const safetensors::Metadata metadata = {{"number", std::to_string(i)}};
    files[shard_name(name, i)] =
        test::text_of(safetensors::serialize(test::views_of(tensors), &metadata).bytes());
  }
  if (with_index) {
    files[name + ".safetensors.index.json"] =
        "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total) +
        "\n  },\n  \"weight_map\": {" + map + "\n  }\n}";
  }
  return files;
}

/// A folder with a base of three files, and the patch of its next state.
struct Folder {
  test::States states{};
  test::TempDir dir{};
  test::fs::path base = dir / "base";
  test::fs::path next = dir / "next";
  std::string patch = test::patch_between(states.before, states.after).text();

  explicit Folder(const std::string& name = "model", bool with_index = true)
      : Folder(name, with_index, test::States().before) {}
  Folder(const std::string& name, bool with_index, const test::State& state) {
    test::fs::create_directory(base);
    for (const auto& [file, text] : shards_of(state, name, with_index)) {
      test::write_text(base / file, text);
    }
  }
  void apply(const test::fs::path& to, const ApplyPatchOptions& options = {}) const {
    safetensors::apply_patch(test::open_patch_text(patch), safetensors::open_model(base), to,
                             options);
  }
  /// Applies a patch that is refused: nothing is written.
  [[nodiscard]] safetensors::Error refusal(const test::fs::path& to,
                                           const ApplyPatchOptions& options = {}) const {
    const Contents before = test::contents(base);
    const safetensors::Error error = test::error_of([&] { apply(to, options); });
    CHECK(test::contents(base) == before);
    CHECK(dir.count() == 1);
    return error;
  }
};

}  // namespace

TEST_CASE("a patch of a model of several files makes as many, and an index") {
  for (const char* const name : {"model", "diffusion_pytorch_model.fp16"}) {
    for (const bool with_index : {true, false}) {
      for (const PatchVerify verify : kAll) {
        const Folder folder(name, with_index);
        folder.apply(folder.next, {.verify = verify});
        CHECK(test::contents(folder.next) == shards_of(folder.states.after, name, true));
      }
    }
  }
}

TEST_CASE("a patch replaces the files of its base, with sums, as a whole") {
  const Folder folder;
  std::vector<std::uint64_t> seen;
  std::uint64_t total = 0;
  folder.apply(folder.base, {.fsync = true, .sums = true, .progress = [&](auto done, auto of) {
                               seen.push_back(done);
                               total = of;
                             }});
  Contents found = test::contents(folder.base);
  REQUIRE(found.erase("model.sums.json") == 1);
  CHECK(found == shards_of(folder.states.after, "model", true));
  CHECK(std::ranges::is_sorted(seen));
  CHECK(seen.back() == total);
  const auto sums = safetensors::Sums::read(folder.base / "model.sums.json");
  CHECK(sums.size() == folder.states.after.size());
  for (std::size_t i = 0; i < 3; ++i) {
    const test::fs::path path = folder.base / shard_name("model", i);
    CHECK(safetensors::find_damage(safetensors::SafeOpen(path), safetensors::digests_of(sums, path))
              .empty());
  }
  // Sums that the model has would be those of the old one.
  const Folder again;
  test::write_text(again.base / "model.sums.json", "old");
  again.apply(again.base);
  CHECK(test::contents(again.base) == shards_of(again.states.after, "model", true));
}

TEST_CASE("a model that is not the patch's base is refused, and nothing is written") {
  const test::States states;
  test::State mixed = states.before;
  mixed["bytes"] = states.after.at("bytes");  // of the last file
  test::State kept = states.before;
  kept.at("kept").bytes[0] ^= std::byte{8};
  for (const bool in_place : {true, false}) {
    const auto outcome = [&](const test::State& state, PatchVerify verify) {
      const Folder folder("model", true, state);
      const auto error = folder.refusal(in_place ? folder.base : folder.next, {.verify = verify});
      return std::string(test::name_of(error.code()));
    };
    for (const PatchVerify verify : kAll) {
      CHECK(outcome(states.after, verify) == "kPatchApplied");
      CHECK(outcome(mixed, verify) == "kWrongBase");
    }
    CHECK(outcome(kept, PatchVerify::kWhole) == "kWrongBase");
  }
}

TEST_CASE("the output of several files is a folder without another model") {
  const Folder folder;
  const auto error = folder.refusal(folder.dir / "a.safetensors");
  CHECK(error.code() == safetensors::ErrorCode::kInvalidArgument);
  CHECK(std::string(error.what()).find("the model has 3 files") != std::string::npos);
  CHECK(folder.refusal(folder.dir / "no" / "folder").code() == safetensors::ErrorCode::kIo);

  test::write_text(folder.base / "1.safetensors-patch", "x");  // no model
  test::write_text(folder.base / ".hidden.safetensors", "x");
  folder.apply(folder.base);
  const Folder other;
  const test::fs::path next = other.dir / "base" / "next";
  test::fs::create_directory(next);
  test::write_text(next / "other.safetensors", "x");
  const auto refused = test::error_of([&] { other.apply(next); });
  CHECK(refused.code() == test::ErrorCode::kSeveralModels);
  CHECK(refused.path() == next / "other.safetensors");
  CHECK(test::contents(next) == Contents{{"other.safetensors", "x"}});
}

TEST_CASE("one file is written to a folder that exists, or ends with a separator") {
  const test::States states;
  const std::string patch = test::patch_between(states.before, states.after).text();
  const auto text_of = [](const test::State& state) {
    const std::vector<test::OwnTensor> tensors = test::tensors_in(state);
    return test::text_of(safetensors::serialize(test::views_of(tensors)).bytes());
  };
  const test::TempDir dir;
  test::write_text(dir / "base.safetensors", text_of(states.before));
  test::fs::create_directory(dir / "there");
  for (const char* const to : {"there", "new/"}) {
    safetensors::apply_patch(test::open_patch_text(patch),
                             safetensors::open_model(dir / "base.safetensors"), dir / to);
    CHECK(test::contents(dir / to) == Contents{{"model.safetensors", text_of(states.after)}});
  }
}

TEST_CASE("an interrupt leaves the old files, or the new ones") {
  struct Stop : std::exception {};
  for (const bool in_place : {true, false}) {
    for (int limit = 0;; ++limit) {
      const Folder folder;
      const Contents before = test::contents(folder.base);
      int calls = 0;
      try {
        folder.apply(in_place ? folder.base : folder.next,
                     {.verify = PatchVerify::kWhole, .interrupt = [&] {
                        if (calls++ == limit) throw Stop();
                      }});
        CHECK(limit > 15);
        break;
      } catch (const Stop&) {
        const test::fs::path to = in_place ? folder.base : folder.next;
        const bool is_new = in_place ? test::contents(to) != before : test::fs::exists(to);
        if (is_new) CHECK(test::contents(to) == shards_of(folder.states.after, "model", true));
        if (!is_new) CHECK(folder.dir.count() == 1);
      }
    }
  }
}

TEST_CASE("C: a patch of a model of several files") {
  const Folder folder;
  const std::string base = folder.base.string();
  const std::string next = folder.next.string();
  safetensors_patch* patch = nullptr;
  safetensors_file* model = nullptr;
  REQUIRE(safetensors_patch_open(test::open_memory(folder.patch).get(), &patch, nullptr) == 0);
  REQUIRE(safetensors_open_model(base.data(), base.size(), nullptr, &model, nullptr) == 0);
  safetensors_error error{};
  safetensors_patch* refused = nullptr;
  CHECK(test::named(safetensors_patch_open(model, &refused, &error)) == "kInvalidArgument");
  CHECK(std::string(error.text) ==
        "a patch is one file, and this is a model of 3 files (in " + base + ")");
  CHECK(refused == nullptr);
  auto options = test::sized<safetensors_patch_options>();
  options.flags = SAFETENSORS_SUMS;
  CHECK(safetensors_patch_apply_file(patch, model, next.data(), next.size(), &options, nullptr) ==
        SAFETENSORS_OK);
  const std::string file = next + ".safetensors";
  CHECK(test::named(safetensors_patch_apply_file(patch, model, file.data(), file.size(), nullptr,
                                                 nullptr)) == "kInvalidArgument");
  safetensors_close(model);
  safetensors_patch_close(patch);
  Contents found = test::contents(folder.next);
  CHECK(found.erase("model.sums.json") == 1);
  CHECK(found == shards_of(folder.states.after, "model", true));
}
