#include <doctest/doctest.h>

#include <string>

#include "base/file_kind.hpp"
#include "support.hpp"

using safetensors::hint_for_foreign_file;

TEST_CASE("well-known files are told by their first bytes") {
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
    const std::string hint = hint_for_foreign_file(exact.span());
    CAPTURE(hint);
    CHECK(hint.starts_with(". "));
    CHECK(hint.find(word) != std::string::npos);
    for (std::size_t size = 0; size < start.size(); ++size) {
      const test::ExactBytes prefix(std::string_view(start).substr(0, size));
      (void)hint_for_foreign_file(prefix.span());
    }
  }
}

TEST_CASE("and other files are not") {
  for (const std::string& start :
       {std::string(), std::string(64, '\0'), std::string(64, ' '), test::file_of("{}"),
        test::file_of(std::string(64, '{')), std::string("PK"), std::string("<svg>")}) {
    const test::ExactBytes exact(start);
    CHECK(hint_for_foreign_file(exact.span()).empty());
  }
}
