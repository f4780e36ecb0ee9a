#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check/checked_source.hpp"
#include "fake_source.hpp"
#include "safetensors/device.hpp"
#include "safetensors/safe_open.hpp"
#include "safetensors/verify.hpp"
#include "support.hpp"

using namespace safetensors;

namespace {

constexpr std::uint64_t kBlock = kDigestBlockSize;

/// A file of U8 tensors, and its digests.
struct HashedFile {
  std::vector<std::byte> bytes;
  std::uint64_t data_begin = 0;
  FileDigests digests;

  [[nodiscard]] std::shared_ptr<test::FakeSource> source() const {
    return std::make_shared<test::FakeSource>(bytes);
  }
};

enum class Kind : std::uint8_t { kBlocks, kWhole, kSha256 };

/// Not SHA-256, but as the caller's function the library cannot tell.
Digest sha256(std::string_view start, std::span<const std::byte> bytes) {
  Xxh3Hasher hasher;
  hasher.update(std::as_bytes(std::span(start)));
  hasher.update(bytes);
  const Digest half = hasher.digest();
  std::vector<std::byte> both(half.bytes().begin(), half.bytes().end());
  both.insert(both.end(), half.bytes().begin(), half.bytes().end());
  return {DigestAlgorithm::kSha256, both};
}

/// Sanitizers check a call of memcmp at once, and a loop byte by byte.
bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

bool contains(const Error& error, std::string_view text) {
  return std::string_view(error.what()).find(text) != std::string_view::npos;
}

HashedFile make_file(std::span<const std::uint64_t> sizes, Kind kind = Kind::kBlocks) {
  HashedFile model;
  std::string json = "{";
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i != 0) json += ",";
    json += "\"t" + std::to_string(i) + "\":{\"dtype\":\"U8\",\"shape\":[" +
            std::to_string(sizes[i]) + "],\"data_offsets\":[" + std::to_string(end) + "," +
            std::to_string(end + sizes[i]) + "]}";
    end += sizes[i];
  }
  json += "}";
  while (json.size() % 8 != 0) json += ' ';
  model.data_begin = 8 + json.size();
  model.bytes.resize(model.data_begin + end);
  for (std::size_t i = 0; i < 8; ++i) {
    model.bytes[i] = static_cast<std::byte>(json.size() >> (8 * i));
  }
  std::memcpy(model.bytes.data() + 8, json.data(), json.size());
  std::uint64_t state = 1;
  for (std::size_t i = model.data_begin; i < model.bytes.size(); i += sizeof(state)) {
    state = state * 6364136223846793005 + 1442695040888963407;
    std::memcpy(&model.bytes[i], &state, std::min(sizeof(state), model.bytes.size() - i));
  }
  const auto start = std::span(model.bytes).first(model.data_begin);
  Xxh3Hasher header;
  header.update(start);
  model.digests = {.nbytes = model.bytes.size(), .header = header.digest(), .sha256 = &sha256};
  if (kind == Kind::kSha256) model.digests.header = sha256("", start);
  std::uint64_t at = model.data_begin;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto tensor = std::span(model.bytes).subspan(at, sizes[i]);
    const std::vector<std::uint64_t> shape = {sizes[i]};
    TensorHasher hasher(Dtype::kU8, shape, kBlock);
    hasher.update(tensor);
    TensorDigests& wanted = model.digests.tensors["t" + std::to_string(i)];
    wanted.digest = hasher.digest();
    if (kind == Kind::kSha256) wanted.digest = sha256(digest_start(Dtype::kU8, shape), tensor);
    if (kind == Kind::kBlocks) wanted.blocks = hasher.blocks();
    at += sizes[i];
  }
  return model;
}

const std::vector<std::uint64_t> kSizes = {10, 2 * kBlock + 5, 0, 3, kBlock, 1000, kBlock - 1, 1};

void flip(HashedFile& model, std::uint64_t at) { model.bytes.at(at) ^= std::byte{16}; }

Error damaged_error(const auto& work) {
  Error error = test::error_of(work);
  CHECK(error.code() == ErrorCode::kDamaged);
  return error;
}

}  // namespace

TEST_CASE("a good file is read as without digests, each byte once") {
  for (const Kind kind : {Kind::kBlocks, Kind::kWhole, Kind::kSha256}) {
    const HashedFile model = make_file(kSizes, kind);
    const auto fake = model.source();
    const SafeOpen file(checked_source(fake, model.digests, "m.safetensors"), "m.safetensors");
    const std::uint64_t of_header = fake->nbytes_read();
    const auto views = file.get_tensors();
    CHECK(fake->nbytes_read() - of_header == model.bytes.size() - model.data_begin);
    for (const TensorView& view : views) {
      const TensorInfo& info = file.at(view.name);
      CHECK(same(view.bytes(),
                 std::span(model.bytes).subspan(model.data_begin + info.begin, info.nbytes())));
    }
  }
}

TEST_CASE("every range has the bytes of the file, whatever was read before") {
  for (const Kind kind : {Kind::kBlocks, Kind::kWhole}) {
    for (const bool is_request : {false, true}) {
      const HashedFile model = make_file(kSizes, kind);
      const auto fake = model.source();
      fake->read_cost.is_request = is_request;
      const auto source = checked_source(fake, model.digests, "m");
      std::mt19937_64 random(7);
      for (int i = 0; i < 60; ++i) {
        const std::uint64_t limit = i % 2 == 0 ? 5000 : model.bytes.size();
        const std::uint64_t nbytes = random() % limit;
        const std::uint64_t offset = random() % (model.bytes.size() - nbytes + 1);
        std::vector<std::byte> read(nbytes);
        source->read_at(offset, read);
        REQUIRE(same(read, std::span(model.bytes).subspan(offset, nbytes)));
        std::vector<std::byte> parts(nbytes);
        const auto all = std::span(parts);
        const std::vector<ReadPiece> pieces = {{offset, all.first(nbytes / 3)},
                                               {offset + nbytes / 2, all.subspan(nbytes / 2)}};
        source->read_parts(offset, nbytes, pieces);
        for (const ReadPiece& piece : pieces) {
          REQUIRE(same(piece.to, std::span(model.bytes).subspan(piece.offset, piece.to.size())));
        }
      }
    }
  }
}

TEST_CASE("a flipped bit in any block is found by every way to read it, and nothing else is") {
  for (const Kind kind : {Kind::kBlocks, Kind::kWhole, Kind::kSha256}) {
    const HashedFile good = make_file(kSizes, kind);
    const Header header = Header::parse(std::span(good.bytes).subspan(8, good.data_begin - 8),
                                        good.bytes.size() - good.data_begin);
    for (const TensorInfo& info : header.tensors()) {
      // A tensor without blocks is compared as a whole, wherever the bit is.
      const std::uint64_t step = kind == Kind::kBlocks ? kBlock : info.nbytes();
      for (std::uint64_t in = 0; in < info.nbytes(); in += step) {
        HashedFile model = good;
        const std::uint64_t at =
            good.data_begin + info.begin + std::min(in + kBlock / 3, info.nbytes() - 1);
        flip(model, at);
        const auto fake = model.source();
        const SafeOpen file(checked_source(fake, model.digests, "m"), "m");
        for (const TensorInfo& each : file.header().tensors()) {
          if (each.name != info.name) {
            (void)file.get_tensor(each);
            continue;
          }
          const auto check = [&](const Error& error) {
            const std::vector<Damage> damage = damage_of(error);
            REQUIRE(damage.size() == 1);
            CHECK(damage[0].tensor == info.name);
            CHECK(damage[0].begin <= at);
            CHECK(damage[0].end > at);
            const bool is_located = damage[0].end - damage[0].begin <= kBlock;
            CHECK((is_located || kind != Kind::kBlocks));
            CHECK(damage[0].expected != damage[0].found);
            CHECK(error.subject() == info.name);
          };
          check(damaged_error([&] { (void)file.get_tensor(each); }));
          const auto row = static_cast<std::int64_t>(at - good.data_begin - info.begin);
          const std::vector<Index> index = {Index::slice(row, row + 1)};
          check(damaged_error([&] { (void)file.get_slice(each, index); }));
          const std::vector<Index> other = {Index::slice(0, 1)};
          if (kind == Kind::kBlocks && in >= kBlock) {
            CHECK(file.get_slice(each, other).nbytes() == 1);
          } else {
            check(damaged_error([&] { (void)file.get_slice(each, other); }));
          }
        }
        CHECK(damage_of(damaged_error([&] { (void)file.get_tensors(); })).size() == 1);
        CHECK(find_damage(*file.source(), 0, model.bytes.size()).size() == 1);
      }
    }
  }
}

TEST_CASE("size, header and sums that do not fit are told from damage") {
  const HashedFile good = make_file(kSizes);
  const auto open = [](const HashedFile& model) {
    return test::error_of([&] { (void)checked_source(model.source(), model.digests, "m"); });
  };
  const std::vector<std::uint64_t> short_sizes = {10, 0, 3, 1000};
  const HashedFile short_one = make_file(short_sizes);
  for (std::uint64_t at = 0; at < short_one.data_begin; ++at) {
    HashedFile model = short_one;
    flip(model, at);
    const Error error = open(model);
    CHECK(error.code() == ErrorCode::kDamaged);
    CHECK(damage_of(error).empty());
    CHECK(contains(error, "header is damaged"));
  }
  HashedFile longer = good;
  longer.bytes.push_back({});
  CHECK(contains(open(longer), "of another file"));
  HashedFile missing = good;
  missing.digests.tensors.erase("t3");
  CHECK(open(missing).code() == ErrorCode::kInvalidArgument);
  missing.digests.is_partial = true;
  flip(missing, missing.data_begin + 10 + 2 * kBlock + 5);  // t3
  const SafeOpen partial(checked_source(missing.source(), missing.digests, "m"), "m");
  CHECK(partial.get_tensors().size() == kSizes.size());
  HashedFile more = good;
  more.digests.tensors["t9"] = good.digests.tensors.at("t1");
  const Error absent = open(more);
  CHECK(absent.code() == ErrorCode::kDamaged);
  CHECK(absent.subject() == "t9");
  CHECK(contains(absent, "tensor `t9` is missing"));
  more.digests.is_partial = true;
  CHECK_NOTHROW((void)checked_source(more.source(), more.digests, "m"));
  HashedFile few = good;
  few.digests.tensors["t1"].blocks.pop_back();
  CHECK(open(few).code() == ErrorCode::kDamaged);
  HashedFile no_sha = make_file(kSizes, Kind::kSha256);
  no_sha.digests.sha256 = {};
  CHECK(open(no_sha).code() == ErrorCode::kInvalidArgument);
  for (const bool is_header : {true, false}) {
    HashedFile one = good;
    one.digests = {.is_partial = true};
    (is_header ? one.digests.header : one.digests.file) = sha256("", one.bytes);
    CHECK(contains(open(one), "FileDigests::sha256 is empty"));
  }
  HashedFile empty = make_file(kSizes, Kind::kWhole);
  empty.digests.tensors["t2"].digest = empty.digests.tensors["t3"].digest;
  CHECK(damage_of(open(empty)).at(0).tensor == "t2");
  // A damaged block in the sums: the digest shows that the tensor is good.
  HashedFile sums = good;
  sums.digests.tensors["t1"].blocks[1] ^= 1;
  const SafeOpen file(checked_source(sums.source(), sums.digests, "m"), "m");
  const Error error = damaged_error([&] { (void)file.get_tensor("t1"); });
  CHECK(damage_of(error).empty());
  CHECK(contains(error, "disagree"));
}

TEST_CASE("plans divide reads at blocks, and whole tensors are not divided") {
  const HashedFile model = make_file(kSizes);
  const auto checked = checked_source(model.source(), model.digests, "m");
  const std::uint64_t begin = model.data_begin + 10;  // of t1
  CHECK(checked->divide(0, begin + kBlock + 7) == begin + kBlock);
  CHECK(checked->divide(begin, begin + kBlock) == begin + kBlock);
  CHECK(checked->divide(begin, begin + 100) == begin + kBlock);
  CHECK(checked->divide(begin + kBlock, begin + 2 * kBlock + 1) == begin + 2 * kBlock);
  CHECK(checked->divide(begin + 2 * kBlock, begin + 2 * kBlock + 1) == begin + 2 * kBlock + 5);
  const HashedFile whole = make_file(kSizes, Kind::kWhole);
  const auto other = checked_source(whole.source(), whole.digests, "m");
  CHECK(other->divide(begin, begin + kBlock) == begin + 2 * kBlock + 5);
  CHECK(other->divide(0, begin + kBlock) == begin);
}

TEST_CASE("loads compare what they read, and name the one tensor that is damaged") {
  for (const Kind kind : {Kind::kBlocks, Kind::kWhole}) {
    HashedFile model = make_file(kSizes, kind);
    const auto load = [&](const std::shared_ptr<const ByteSource>& source) {
      std::vector<std::byte> to(model.bytes.size());
      std::vector<LoadTensor> tensors;
      const SafeOpen file(source, "m");
      for (const TensorInfo& info : file.header().tensors()) {
        const std::uint64_t at = file.position(info);
        tensors.push_back({.name = info.name,
                           .source = 0,
                           .offset = at,
                           .nbytes = info.nbytes(),
                           .to = reinterpret_cast<std::uintptr_t>(to.data() + at)});
      }
      Load one({}, {source});
      one.add(tensors);
      one.finish();
      one.wait();
      CHECK(std::equal(to.begin() + static_cast<std::ptrdiff_t>(model.data_begin), to.end(),
                       model.bytes.begin() + static_cast<std::ptrdiff_t>(model.data_begin)));
    };
    const auto fake = model.source();
    const auto source = checked_source(fake, model.digests, "m");
    const std::uint64_t before = fake->nbytes_read();
    load(source);
    CHECK(fake->nbytes_read() - before == model.bytes.size() - model.data_begin);
    flip(model, model.data_begin + 10 + kBlock);
    const Error error =
        damaged_error([&] { load(checked_source(model.source(), model.digests, "m")); });
    CHECK(damage_of(error).at(0).tensor == "t1");
    CHECK(std::string(error.what()).starts_with("tensor `t1` is damaged between bytes "));
  }
}

TEST_CASE("threads read parts of one source at once") {
  for (const Kind kind : {Kind::kBlocks, Kind::kWhole}) {
    const HashedFile model = make_file(kSizes, kind);
    const auto source = checked_source(model.source(), model.digests, "m");
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        std::mt19937_64 random(i);
        std::vector<std::byte> read(3000);
        for (int n = 0; n < 50; ++n) {
          const std::uint64_t at = random() % (model.bytes.size() - read.size());
          source->read_at(at, read);
          if (std::memcmp(read.data(), model.bytes.data() + at, read.size()) != 0) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("the digest of a whole file is compared at the first read") {
  HashedFile model = make_file(kSizes);
  FileDigests digests{.file = sha256("", model.bytes), .sha256 = &sha256};
  const auto fake = model.source();
  const SafeOpen file(checked_source(fake, digests, "m"), "m");
  for (const TensorView& view : file.get_tensors()) {
    CHECK(same(view.bytes(),
               std::span(model.bytes).subspan(file.position(file.at(view.name)), view.nbytes())));
  }
  CHECK(fake->nbytes_read() == model.bytes.size());  // once, for the header and all tensors
  for (const std::uint64_t at : {std::uint64_t{0}, model.data_begin, model.bytes.size() - 1}) {
    flip(model, at);
    const Error error =
        damaged_error([&] { (void)SafeOpen(checked_source(model.source(), digests, "m"), "m"); });
    const Damage damage = damage_of(error).at(0);
    CHECK(damage.tensor.empty());
    CHECK(damage.end == model.bytes.size());
    flip(model, at);
  }
  model.bytes.clear();
  const auto empty = checked_source(model.source(), digests, "m");
  CHECK(test::error_of([&] { (void)SafeOpen(empty, "m"); }).code() == ErrorCode::kHeaderTooSmall);
}

TEST_CASE("an error about damage names the first range and counts the others") {
  std::vector<safetensors::Damage> damage;
  const std::vector<std::string> wanted = {"", ", and 1 other range too",
                                           ", and 2 other ranges too"};
  for (const std::string& others : wanted) {
    damage.push_back({"a", "f", 1000, 2000 + damage.size(), "x", "y"});
    const auto error = test::error_of([&] { safetensors::fail_damaged(damage); });
    CHECK(std::string(error.what()) ==
          "tensor `a` is damaged between bytes 1,000 and 2,000 of the file: expected x, found y" +
              others + " (in f)");
    CHECK(safetensors::damage_of(error).size() == damage.size());
  }
}
