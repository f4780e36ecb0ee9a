// Runs a fuzz target over files without a fuzzer.
//
//   replay FILE_OR_FOLDER...           runs the target over each file
//   replay --seeds TABLE FOLDER        writes a file for each light row of the table, and some of
//                                      random bytes, as seeds for a fuzzer
//   replay --join MODELS... FOLDER     writes a file for each folder of MODELS that has config.json
//                                      and model.safetensors: both, with a NUL between them; and
//                                      copies the GGUF files of MODELS
//   replay --split TEXT FOLDER         writes a file for each paragraph of a text
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz_input.hpp"
#include "hostile_cases.hpp"
#include "support.hpp"

namespace {

namespace fs = std::filesystem;

void write_seeds(const fs::path& table, const fs::path& folder) {
  fs::create_directories(folder);
  std::size_t count = 0;
  const auto write = [&](const std::string& text) {
    test::write_text(folder / ("seed-" + std::to_string(count++)), text);
  };
  for (const test::HostileCase& hostile : test::read_hostile_cases(table)) {
    if (!hostile.heavy) write(hostile.file());
  }
  std::mt19937 random(1);  // the same files each time
  for (std::size_t i = 0; i < 2000; ++i) {
    std::string noise(random() % 64, '\0');
    for (char& c : noise) c = static_cast<char>(random() % (i % 2 == 0 ? 256 : 24));
    write(noise);
  }
  std::printf("%zu seeds\n", count);
}

/// Fails if a seed is longer than a fuzzer reads: the rest would be cut off.
void write_seed(const fs::path& path, const std::string& text) {
  constexpr std::size_t kMaxSeed = 4096;  // -max_len of run.sh
  if (text.size() > kMaxSeed) {
    throw std::runtime_error(path.filename().string() + " has " + std::to_string(text.size()) +
                             " bytes, and a fuzzer reads " + std::to_string(kMaxSeed));
  }
  test::write_text(path, text);
}

void join_models(const std::vector<std::string>& models, const fs::path& folder) {
  fs::create_directories(folder);
  std::size_t count = 0;
  for (const std::string& each : models) {
    for (const auto& model : fs::directory_iterator(each)) {
      std::string text;
      if (model.path().extension() == ".gguf") {
        text = test::read_text(model.path());
      } else if (fs::is_regular_file(model.path() / "model.safetensors")) {
        text = test::read_text(model.path() / "config.json");
        text += '\0';
        text += test::read_text(model.path() / "model.safetensors");
      } else {
        continue;
      }
      write_seed(folder / model.path().stem(), text);
      ++count;
    }
  }
  std::printf("%zu models\n", count);
}

void split_text(const fs::path& path, const fs::path& folder) {
  fs::create_directories(folder);
  const std::string text = test::read_text(path);
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find("\n\n", begin), text.size() - 1) + 1;
    write_seed(folder / ("paragraph-" + std::to_string(count++)), text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::printf("%zu paragraphs\n", count);
}

void replay(const fs::path& path) {
  const std::string text = test::read_text(path);
  // Of exactly its size, so that a sanitizer sees a read past the end.
  const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[text.size()]);
  std::copy(text.begin(), text.end(), exact.get());
  LLVMFuzzerTestOneInput(exact.get(), text.size());
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 3 && arguments[0] == "--seeds") {
    write_seeds(arguments[1], arguments[2]);
    return 0;
  }
  if (arguments.size() >= 3 && arguments[0] == "--join") {
    join_models({arguments.begin() + 1, arguments.end() - 1}, arguments.back());
    return 0;
  }
  if (arguments.size() == 3 && arguments[0] == "--split") {
    split_text(arguments[1], arguments[2]);
    return 0;
  }
  std::size_t count = 0;
  for (const std::string& argument : arguments) {
    if (!fs::is_directory(argument)) {
      replay(argument);
      ++count;
      continue;
    }
    std::vector<fs::path> paths;
    for (const auto& entry : fs::recursive_directory_iterator(argument)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) replay(path);
    count += paths.size();
  }
  std::printf("%zu files\n", count);
  return count == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
