// C: models of the weight layer whose files the program opens, compared with those by path.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "c_memory_folder.hpp"
#include "c_weights_support.hpp"

using test::CBuffer;
using test::MemoryFolder;
using test::named;
using test::Weights;

namespace {

namespace fs = std::filesystem;

/// A model: a folder, or the only GGUF model of one whose files begin with `stem`.
struct Place {
  fs::path folder;
  std::string stem{};

  [[nodiscard]] fs::path path() const {
    if (stem.empty()) return folder;
    const fs::path split = folder / (stem + "-00001-of-00003.gguf");
    return fs::exists(split) ? split : folder / (stem + ".gguf");
  }
};

/// Puts the files of a model into a folder in memory.
void read_into(MemoryFolder& memory, const Place& place) {
  for (const auto& entry : fs::recursive_directory_iterator(place.folder)) {
    const std::string name = entry.path().lexically_relative(place.folder).generic_string();
    if (!entry.is_regular_file()) continue;
    if (!place.stem.empty() &&
        (!name.starts_with(place.stem) || !name.ends_with(".gguf") ||
         (name != place.stem + ".gguf" && !name.starts_with(place.stem + "-0000")))) {
      continue;
    }
    memory.files[name] = test::read_text(entry.path());
  }
}

Place gguf(const std::string& stem) { return {test::model_path("gguf"), stem}; }

/// Returns all models of the tests' data that are to be opened.
std::vector<Place> places() {
  std::vector<Place> all;
  for (const char* room : {"mlx", "schemes", "seeds"}) {
    for (const auto& entry : fs::directory_iterator(test::model_path(room))) {
      if (entry.is_directory()) all.push_back({entry.path()});
    }
  }
  for (const char* room : {"gguf", "gguf_hf", "seeds"}) {
    std::set<std::string> stems;
    for (const auto& entry : fs::directory_iterator(test::model_path(room))) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".gguf")) stems.insert(name.substr(0, name.find_first_of("-.", 0)));
    }
    for (const std::string& stem : stems) {
      const Place place{test::model_path(room), stem};
      if (fs::exists(place.path())) all.push_back(place);
    }
  }
  return all;
}

struct Answer {
  Weights weights{};
  safetensors_error error{};
};

Answer open(MemoryFolder& memory, const safetensors_weights_options* options = nullptr) {
  Answer answer;
  const safetensors_model_source source = memory.source();
  safetensors_weights* weights = nullptr;
  (void)safetensors_weights_open_source(&source, SAFETENSORS_TEXT("label"), options, &weights,
                                        &answer.error);
  answer.weights.reset(weights);
  CHECK((weights == nullptr) == (answer.error.code != 0));
  return answer;
}

Answer open(const fs::path& path, const safetensors_weights_options* options = nullptr) {
  Answer answer;
  const std::string text = path.string();
  safetensors_weights* weights = nullptr;
  (void)safetensors_weights_open(text.data(), text.size(), options, &weights, &answer.error);
  answer.weights.reset(weights);
  return answer;
}

/// Returns a text with "label" for the folder of a model by path.
std::string labelled(std::string text, const fs::path& folder) {
  const std::string name = folder.string();
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos;) {
    text.replace(at, name.size(), "label");
  }
  return text;
}

/// Compares the errors of a model by path and of a source.
void check_errors(const safetensors_error& by_path, const safetensors_error& of_source,
                  const fs::path& folder) {
  CHECK(labelled(by_path.text, folder) == of_source.text);
  CHECK(labelled(by_path.text + by_path.path, folder) == of_source.text + of_source.path);
  CHECK(std::string(by_path.text + by_path.subject) == of_source.text + of_source.subject);
  CHECK(by_path.code == of_source.code);
  CHECK(by_path.detail == of_source.detail);
}

std::atomic<int> reads_left = 0;  ///< before one that fails

using Get = decltype(&safetensors_weights_get);

/// Returns the bytes that a function gives, with their sections; its error if it fails.
std::pair<std::string, std::vector<std::uint64_t>> got(Get get, const safetensors_weights* weights,
                                                       const std::string& name, bool may_view) {
  safetensors_error error{};
  safetensors_buffer* buffer = nullptr;
  if (get(weights, name.data(), name.size(), nullptr, &buffer, &error) != 0) {
    return {std::to_string(error.code), {static_cast<std::uint64_t>(error.detail)}};
  }
  const CBuffer owned(buffer);
  const safetensors_bytes bytes = test::bytes_of(owned);
  CHECK((may_view || bytes.is_view == 0));
  return {std::string(static_cast<const char*>(bytes.data), static_cast<std::size_t>(bytes.nbytes)),
          {std::begin(bytes.sections), std::end(bytes.sections)}};
}

std::pair<std::string, std::int32_t> decoded(const safetensors_weights* weights,
                                             const safetensors_weight& weight, std::int64_t row,
                                             std::int64_t rows) {
  std::uint64_t row_nbytes =
      4 * (weight.rank == 0 ? 1 : static_cast<std::uint64_t>(weight.shape[weight.rank - 1]));
  if (rows == SAFETENSORS_ALL_ROWS) {
    for (std::size_t i = 0; i + 1 < weight.rank; ++i) {
      row_nbytes *= static_cast<std::uint64_t>(weight.shape[i]);
    }
  }
  std::vector<float> to(static_cast<std::size_t>(row_nbytes / 4));
  const std::int32_t code =
      safetensors_weights_decode(weights, weight.name, weight.name_size, row, rows, SAFETENSORS_F32,
                                 to.data(), row_nbytes, nullptr, nullptr);
  if (code != 0) return {"", code};
  return {test::text_of(std::as_bytes(std::span(to))), 0};
}

/// Compares all that there is of two models. Returns the number of weights.
std::size_t check_same(const Weights& a, const Weights& b, const fs::path& folder) {
  safetensors_weights_info infos[2];
  REQUIRE(safetensors_weights_look(a.get(), &infos[0], nullptr) == 0);
  REQUIRE(safetensors_weights_look(b.get(), &infos[1], nullptr) == 0);
  REQUIRE(infos[0].count == infos[1].count);
  CHECK(infos[0].format == infos[1].format);
  CHECK(infos[0].metadata_count == infos[1].metadata_count);
  CHECK(std::string(infos[0].scheme) == infos[1].scheme);
  for (std::int32_t list = SAFETENSORS_LIST_UNMAPPED; list <= SAFETENSORS_LIST_FILES; ++list) {
    const auto texts_of = [&](const Weights& weights) {
      std::vector<std::string> texts;
      std::size_t count = 0;
      const safetensors_text* const table = safetensors_weights_list(weights.get(), list, &count);
      for (std::size_t i = 0; i < count; ++i) {
        texts.push_back(labelled({table[i].data, table[i].size}, folder));
      }
      return texts;
    };
    CHECK(texts_of(a) == texts_of(b));
  }
  std::size_t fields = 0;
  const safetensors_text* const names = safetensors_weights_config_fields(&fields);
  for (std::size_t i = 0; i < fields; ++i) {
    safetensors_value values[2]{};
    for (const auto& [model, value] : {std::pair{a.get(), &values[0]}, {b.get(), &values[1]}}) {
      CHECK(safetensors_weights_config(model, names[i].data, names[i].size, value, nullptr) == 0);
    }
    CHECK(values[0].kind == values[1].kind);
    CHECK(values[0].integer == values[1].integer);
    CHECK(values[0].number == values[1].number);
    CHECK(std::string(values[0].string == nullptr ? "" : values[0].string) ==
          std::string(values[1].string == nullptr ? "" : values[1].string));
  }
  for (std::size_t i = 0; i < infos[0].count; ++i) {
    safetensors_weight weights[2]{};
    REQUIRE(safetensors_weights_at(a.get(), i, &weights[0], nullptr) == 0);
    REQUIRE(safetensors_weights_at(b.get(), i, &weights[1], nullptr) == 0);
    const std::string name = weights[0].name;
    CAPTURE(name);
    REQUIRE(name == weights[1].name);
    for (const Get get : {&safetensors_weights_get, &safetensors_weights_get_stored}) {
      CHECK(got(get, a.get(), name, true) == got(get, b.get(), name, false));
    }
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{SAFETENSORS_ALL_ROWS}}) {
      CHECK(decoded(a.get(), weights[0], 0, rows) == decoded(b.get(), weights[1], 0, rows));
    }
  }
  return infos[0].count;
}

}  // namespace

TEST_CASE("C: a model of a source is the model at the path, whatever its format and scheme") {
  std::size_t models = 0;
  std::size_t weights = 0;
  for (const Place& place : places()) {
    CAPTURE(place.path().string());
    MemoryFolder memory;
    read_into(memory, place);
    {
      const Answer by_path = open(place.path());
      const Answer of_source = open(memory);
      check_errors(by_path.error, of_source.error, place.folder);
      if (!by_path.weights || !of_source.weights) continue;
      ++models;
      weights += check_same(by_path.weights, of_source.weights, place.folder);
      CHECK(memory.releases == 0);
    }
    memory.check_released();
  }
  CHECK(models > 80);
  CHECK(weights > 900);
}

TEST_CASE("C: hostile models of a source give the errors of those at a path") {
  const fs::path bad = test::model_path("bad");
  std::size_t failed = 0;
  for (const auto& entry : fs::directory_iterator(bad)) {
    CAPTURE(entry.path().string());
    if (entry.path().extension() == ".json") continue;
    const bool is_folder = entry.is_directory();
    const Place place = is_folder ? Place{entry.path()} : Place{bad, entry.path().stem().string()};
    MemoryFolder memory;
    read_into(memory, place);
    {
      const Answer by_path = open(entry.path());
      const Answer of_source = open(memory);
      check_errors(by_path.error, of_source.error, place.folder);
      failed += of_source.weights == nullptr;
    }
    memory.check_released();
  }
  CHECK(failed > 60);
}

TEST_CASE("C: files of a source that are cut anywhere are one error, as local ones are") {
  for (const auto& [place, name] :
       {std::pair{gguf("llama_q4_0"), "llama_q4_0.gguf"},
        std::pair{Place{test::model_path("mlx/llama_q4_g64_bf16")}, "model.safetensors"},
        std::pair{Place{test::model_path("mlx/llama_q4_g64_bf16")}, "config.json"}}) {
    MemoryFolder whole;
    read_into(whole, place);
    const std::string bytes = whole.files.at(name);
    for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 8) {
      MemoryFolder memory;
      memory.files = whole.files;
      memory.files[name].resize(size);
      const Answer answer = open(memory);
      CAPTURE(size);
      CHECK(answer.error.code > 0);
      CHECK(answer.error.detail > 0);
      CHECK(std::string(answer.error.text + answer.error.path) == std::string("label/") + name);
      memory.check_released();
    }
  }
}

TEST_CASE("C: shards and parts that the program does not have") {
  const auto error_without = [](const Place& place, const std::string& name) {
    MemoryFolder memory;
    read_into(memory, place);
    REQUIRE(memory.files.erase(name) == 1);
    Answer answer = open(memory);
    memory.check_released();
    CHECK(answer.error.detail == SAFETENSORS_FAULT_MISSING_SHARD);
    CHECK(named(answer.error.code) == "kIncompleteModel");
    return std::string(answer.error.text);
  };
  const std::string part = "llama_split_q4_0-00002-of-00003.gguf";
  CHECK(error_without(gguf("llama_split_q4_0"), part) ==
        "part 2 of 3 does not exist (in label/" + part + ")");
  const std::string shard = "model-00002-of-00003.safetensors";
  CHECK(error_without({test::model_path("mlx/llama_sharded")}, shard)
            .find("there is no file `" + shard + "`") != std::string::npos);
  MemoryFolder empty;
  CHECK(named(open(empty).error.code) == "kNoModel");
  empty.check_released();
  MemoryFolder several;
  several.files = {{"a.gguf", ""}, {"b.gguf", ""}, {"sub/c.gguf", ""}};
  const Answer answer = open(several);
  CHECK(answer.error.detail == SAFETENSORS_FAULT_UNSUPPORTED);
  CHECK(std::string(answer.error.text).find("`a.gguf` and `b.gguf`") != std::string::npos);
  CHECK(several.opened.empty());
}

TEST_CASE("C: shards of an index need not be among the names, and a choice is made among them") {
  const Place place{test::model_path("mlx/llama_sharded")};
  MemoryFolder memory;
  read_into(memory, place);
  memory.lists_index_only = true;  // so that there is no config.json
  CHECK(open(memory).weights != nullptr);
  CHECK(std::ranges::count(memory.names(), "model-00002-of-00003.safetensors") == 1);
  CHECK(std::ranges::count(memory.names(), "config.json") == 0);
  memory.check_released();

  MemoryFolder two;
  read_into(two, {test::model_path("mlx/llama_q4_g64_bf16")});
  two.files["model.fp16.safetensors"] = two.files.at("model.safetensors");
  two.files.erase("model.safetensors");
  auto options = test::sized<safetensors_weights_options>();
  options.variant = "fp16";
  options.variant_size = SAFETENSORS_NUL_TERMINATED;
  options.flags = SAFETENSORS_WEIGHTS_NO_MMAP;
  CHECK(open(two, &options).weights != nullptr);
  two.check_released();
}

TEST_CASE("C: what the callbacks fail with is the error of the call") {
  const Place sharded{test::model_path("mlx/llama_sharded")};
  const std::pair<Place, std::string> cases[] = {
      {sharded, "config.json"},
      {sharded, "model.safetensors.index.json"},
      {sharded, "model-00002-of-00003.safetensors"},
      {gguf("llama_q8_0"), "llama_q8_0.gguf"},
      {gguf("llama_split_q4_0"), "llama_split_q4_0-00003-of-00003.gguf"}};
  for (const auto& [place, name] : cases) {
    CAPTURE(name);
    for (const auto& [code, wanted] : {std::pair{0, "kIo"}, std::pair{30, "kDamaged"},
                                       std::pair{1000, "kIo"}, std::pair{-2, ""}}) {
      MemoryFolder memory;
      read_into(memory, place);
      memory.fails_on = name;
      memory.failure.code = code;
      memory.failure.detail = 7;
      const Answer answer = open(memory);
      memory.check_released();
      if (code == SAFETENSORS_STOPPED) {
        CHECK(answer.error.code == SAFETENSORS_STOPPED);
        CHECK(answer.error.detail == 7);
        continue;
      }
      CHECK(named(answer.error.code) == wanted);
      CHECK(answer.error.detail == SAFETENSORS_FAULT_IO);
      CHECK(std::string(answer.error.text) == "the file was not opened (in label/" + name + ")");
    }
  }
}

TEST_CASE("C: sources that lie about their size, return too little or too much, or fail") {
  const auto outcome = [](const Place& place, void (*change)(safetensors_source*)) {
    MemoryFolder memory;
    read_into(memory, place);
    memory.change = change;
    Answer answer = open(memory);
    if (answer.weights) {
      safetensors_weights_info info{};
      REQUIRE(safetensors_weights_look(answer.weights.get(), &info, nullptr) == 0);
      for (std::size_t i = 0; i < info.count && answer.error.code == 0; ++i) {
        safetensors_weight weight{};
        safetensors_buffer* buffer = nullptr;
        REQUIRE(safetensors_weights_at(answer.weights.get(), i, &weight, nullptr) == 0);
        (void)safetensors_weights_get(answer.weights.get(), weight.name, weight.name_size, nullptr,
                                      &buffer, &answer.error);
        safetensors_buffer_free(buffer);
      }
    }
    answer.weights.reset();
    memory.check_released();
    return named(answer.error.code);
  };
  for (const Place& place : {gguf("llama_q8_0"), Place{test::model_path("schemes/awq")},
                             Place{test::model_path("mlx/llama_sharded")}}) {
    CAPTURE(place.path().string());
    CHECK(outcome(place, nullptr) == "ok");
    // Short reads are asked for again.
    CHECK(outcome(place, [](safetensors_source* source) {
            source->read = [](void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                              safetensors_error* error) {
              return MemoryFolder::read(context, offset, to, std::min<std::size_t>(nbytes, 1000),
                                        error);
            };
          }) == "ok");
    CHECK(outcome(place, [](safetensors_source* source) { source->nbytes += 1'000'000; }) != "ok");
    CHECK(outcome(place, [](safetensors_source* source) { source->nbytes -= 1; }) != "ok");
    CHECK(outcome(place, [](safetensors_source* source) { source->nbytes = UINT64_MAX; }) != "ok");
    CHECK(outcome(place, [](safetensors_source* source) {
            source->read = [](void*, std::uint64_t, void*, std::size_t nbytes,
                              safetensors_error*) -> std::int64_t {
              return static_cast<std::int64_t>(nbytes) + 1;
            };
          }) == "kInvalidArgument");
    // Each read fails once.
    std::string code = "kIo";
    int reads = 0;
    for (; code == "kIo"; ++reads) {
      reads_left = reads;
      code = outcome(place, [](safetensors_source* source) {
        source->read = [](void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                          safetensors_error* error) -> std::int64_t {
          if (reads_left-- != 0) return MemoryFolder::read(context, offset, to, nbytes, error);
          error->os_error = EACCES;
          return -1;
        };
      });
    }
    CHECK(code == "ok");
    CHECK(reads > 5);
    CHECK(outcome(place, [](safetensors_source* source) {
            source->read = [](void*, std::uint64_t, void*, std::size_t,
                              safetensors_error*) -> std::int64_t { return 0; };
          }) == "kFileChanged");
    CHECK(outcome(place, [](safetensors_source* source) { source->is_request = 2; }) ==
          "kInvalidArgument");
  }
}

TEST_CASE("C: callbacks that call the library, and two threads that read one model") {
  MemoryFolder memory;
  read_into(memory, gguf("llama_q4_k_m"));
  memory.change = [](safetensors_source* source) {
    // Another model, by path and of a source, while this one is opened.
    CHECK(open(test::model_path("mlx/llama_q4_g64_bf16")).weights != nullptr);
    MemoryFolder inner;
    read_into(inner, gguf("llama_q8_0"));
    CHECK(open(inner).weights != nullptr);
    inner.check_released();
    source->is_request = 1;
    source->concurrency = 2;
    source->read = [](void* context, std::uint64_t offset, void* to, std::size_t nbytes,
                      safetensors_error* error) {
      if (safetensors_abi_version() != SAFETENSORS_ABI_VERSION ||
          safetensors_weights_config_fields(nullptr) == nullptr) {
        std::abort();
      }
      return MemoryFolder::read(context, offset, to, nbytes, error);
    };
  };
  {
    const Answer by_path = open(gguf("llama_q4_k_m").path());
    const Answer of_source = open(memory);
    REQUIRE(of_source.weights != nullptr);
    safetensors_weights_info info{};
    REQUIRE(safetensors_weights_look(of_source.weights.get(), &info, nullptr) == 0);
    std::atomic<std::size_t> right = 0;
    const auto work = [&] {
      for (std::size_t i = 0; i < info.count; ++i) {
        safetensors_weight weight{};
        (void)safetensors_weights_at(of_source.weights.get(), i, &weight, nullptr);
        const std::string name = weight.name;
        right += got(&safetensors_weights_get, by_path.weights.get(), name, true) ==
                 got(&safetensors_weights_get, of_source.weights.get(), name, false);
        right += decoded(by_path.weights.get(), weight, 0, 1) ==
                 decoded(of_source.weights.get(), weight, 0, 1);
      }
    };
    std::thread other(work);
    work();
    other.join();
    CHECK(right == 4 * info.count);
  }
  memory.check_released();
}

TEST_CASE("C: the source and the allocator are released once in any case") {
  struct Counts {
    std::atomic<int> allocator = 0;
    std::atomic<int> live = 0;
  } counts;
  auto allocator = test::sized<safetensors_allocator>();
  allocator.context = &counts;
  allocator.allocate = [](void* context, std::size_t nbytes) -> void* {
    ++static_cast<Counts*>(context)->live;
    return ::operator new(nbytes, std::align_val_t{64});
  };
  allocator.deallocate = [](void* context, void* memory, std::size_t) {
    --static_cast<Counts*>(context)->live;
    ::operator delete(memory, std::align_val_t{64});
  };
  allocator.release = [](void* context) { ++static_cast<Counts*>(context)->allocator; };
  auto options = test::sized<safetensors_weights_options>();
  options.allocator = &allocator;

  {
    MemoryFolder memory;
    read_into(memory, {test::model_path("mlx/llama_q4_g64_bf16")});
    CBuffer kept;
    {
      const Answer answer = open(memory, &options);
      kept = test::get(answer.weights, "layers.0.attention.q.weight");
      CHECK(memory.releases == 0);
    }
    memory.check_released();  // the buffer does not need the sources
    CHECK(counts.live == 1);
    CHECK(counts.allocator == 0);
    kept.reset();
    CHECK(counts.live == 0);
    CHECK(counts.allocator == 1);
  }

  MemoryFolder memory;
  safetensors_weights* weights = nullptr;
  const auto code_of = [&](const safetensors_model_source* source, const char* label,
                           std::size_t label_size, safetensors_weights** to) {
    return named(safetensors_weights_open_source(source, label, label_size, &options, to, nullptr));
  };
  const std::string invalid = "kInvalidArgument";
  const auto check = [&](const std::string& outcome, const std::string& wanted, int folders,
                         int allocators) {
    CHECK(outcome == wanted);
    CHECK(memory.releases == folders);
    CHECK(counts.allocator == allocators);
    memory.releases = 0;
    counts.allocator = 0;
  };
  counts.allocator = 0;
  safetensors_model_source source = memory.source();
  check(code_of(&source, "label", 5, &weights), "kNoModel", 1, 1);
  check(code_of(nullptr, "label", 5, &weights), invalid, 0, 1);
  check(code_of(&source, "a\0b", 3, &weights), invalid, 1, 1);
  check(code_of(&source, "label", 5, nullptr), invalid, 1, 1);
  source.size = 3;
  check(code_of(&source, "label", 5, &weights), invalid, 0, 1);
  source = memory.source();
  source.name_count = 1;
  source.names = nullptr;
  check(code_of(&source, "label", 5, &weights), invalid, 1, 1);
  source = memory.source();
  options.flags = 1U << 31;
  check(code_of(&source, "label", 5, &weights), invalid, 1, 1);
  options.flags = 0;
  allocator.allocate = nullptr;
  check(code_of(&source, "label", 5, &weights), invalid, 1, 0);
  options.size = 1;
  check(code_of(&source, "label", 5, &weights), invalid, 1, 0);
  CHECK(weights == nullptr);
}
