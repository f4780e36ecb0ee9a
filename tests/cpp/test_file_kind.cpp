#include <doctest/doctest.h>

#include <string>

#include "safetensors/file_kind.hpp"
#include "support.hpp"

using safetensors::foreign_file_hint;
using safetensors::foreign_file_kind;

TEST_CASE("well-known file formats are recognised by their first bytes") {
  using namespace std::string_literals;
  const std::pair<std::string, std::string> kinds[] = {
      {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
      {"PK\x03\x04zip", "zip archive"},
      {"GGUF\x03\0\0\0"s, "GGUF"},
      {"lmgg\x01", "GGML"},
      {"fmgg\x01", "ggmf"},
      {"tjgg\x03", "ggjt"},
      {"algg\x01", "ggla"},
      {"\x93NUMPY\x01", ".npy"},
      {"\x89HDF\r\n\x1A\n", "HDF5"},
      {"\x1F\x8B\x08", "gzip"},
      {"\x28\xB5\x2F\xFD", "zstd"},
      {"\x80\x02}q", "pickle"},
      {"\x80\x04\x95", "pickle"},
      {"<!DOCTYPE html><html>", "HTML"},
      {" \n<!doctype HTML>", "HTML"},
      {"<html lang=en>", "HTML"},
      {"{\"weight_map\": {}}", "JSON"}};
  for (const auto& [start, word] : kinds) {
    const test::ExactBytes exact(start);
    const std::string hint = foreign_file_hint(exact.span());
    CAPTURE(hint);
    CHECK(hint.starts_with(". This is "));
    CHECK(hint.find(word) != std::string::npos);
    for (std::size_t size = 0; size < start.size(); ++size) {
      const test::ExactBytes prefix(std::string_view(start).substr(0, size));
      (void)foreign_file_hint(prefix.span());
    }
  }
}

TEST_CASE("other files are not recognised") {
  for (const std::string& start :
       {std::string(), std::string(64, '\0'), std::string(64, ' '), test::file_of("{}"),
        test::file_of(std::string(64, '{')), std::string("PK"), std::string("<svg>")}) {
    const test::ExactBytes exact(start);
    CHECK(foreign_file_hint(exact.span()).empty());
    CHECK_FALSE(foreign_file_kind(exact.span()));
  }
}

TEST_CASE("a kind has a name for programs") {
  const auto name = [](std::string_view start) {
    return foreign_file_kind(test::bytes_of(start)).value().name;
  };
  CHECK(name("version https://git-lfs.github.com/spec/v1") == "git-lfs-pointer");
  CHECK(name("PK\x03\x04") == "zip");
  CHECK(name("tjgg") == "ggml");
  CHECK(name("\x1F\x8B") == name("\x28\xB5\x2F\xFD"));
  CHECK(name("\x80\x02") == "pickle");
  CHECK(name("<html>") == "html");
  CHECK(name("{") == "json");
}
