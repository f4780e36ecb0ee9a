// Reads a file on a server by HTTP ranges, with libcurl: only its header and what is wanted of it.
//
//   read_url URL                  lists the tensors
//   read_url URL COPY TENSOR...   writes these tensors to a file
#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "safetensors/safetensors.hpp"

namespace {

using safetensors::ErrorCode;

/// What a server has answered to a request for a range.
struct Answer {
  CURL* connection;
  std::span<std::byte> to;  // where the body goes
  std::size_t filled = 0;
  bool is_longer = false;  // the body has more bytes than `to`
  std::string etag{};
  std::string modified{};
  std::string encoding{};
  std::uint64_t begin = 0;  // of Content-Range, as the next two
  std::uint64_t last = 0;
  std::uint64_t total = 0;  // 0: there is none

  [[nodiscard]] long status() const {
    long status = 0;
    curl_easy_getinfo(connection, CURLINFO_RESPONSE_CODE, &status);
    return status;
  }
};

std::size_t on_header(char* text, std::size_t, std::size_t size, void* to) {
  auto& answer = *static_cast<Answer*>(to);
  const std::string line(text, size);
  if (line.starts_with("HTTP/")) {  // of the next answer, after a redirect
    answer = Answer{.connection = answer.connection, .to = answer.to};
  }
  const std::size_t colon = std::min(line.find(':'), line.size() - 1);
  const std::string name = line.substr(0, colon);
  std::string value = line.substr(colon + 1);
  value.erase(0, value.find_first_not_of(" \t"));
  value.erase(value.find_last_not_of(" \t\r\n") + 1);
  if (curl_strequal(name.c_str(), "ETag") != 0) answer.etag = value;
  if (curl_strequal(name.c_str(), "Last-Modified") != 0) answer.modified = value;
  if (curl_strequal(name.c_str(), "Content-Encoding") != 0) answer.encoding = value;
  if (curl_strequal(name.c_str(), "Content-Range") != 0) {  // "bytes 0-99/1234"
    std::istringstream parts(value);
    std::string unit;
    char signs[2] = {};
    parts >> unit >> answer.begin >> signs[0] >> answer.last >> signs[1] >> answer.total;
    if (!parts || unit != "bytes" || signs[0] != '-' || signs[1] != '/') answer.total = 0;
  }
  return size;
}

/// Returning another number than `size` ends the request.
std::size_t on_body(char* bytes, std::size_t, std::size_t size, void* to) {
  auto& answer = *static_cast<Answer*>(to);
  if (answer.status() != 206) return 0;  // a whole file or the page of an error
  answer.is_longer = size > answer.to.size() - answer.filled;
  if (answer.is_longer) return 0;
  std::memcpy(answer.to.data() + answer.filled, bytes, size);
  answer.filled += size;
  return size;
}

/// A file on a server. Its ETag, or else its date, and its size must stay as they were.
///
/// Thread safety: several threads may read at once. Each thread has its own connection, which all
///   sources share.
class UrlSource final : public safetensors::ByteSource {
 public:
  /// Asks for the beginning of the file. Throws: Error kIo.
  explicit UrlSource(std::string url) : url_(std::move(url)), start_(kStart) {
    static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (started != CURLE_OK) give_up(ErrorCode::kIo, curl_easy_strerror(started));
    const Answer answer = get(0, start_);
    etag_ = answer.etag;
    modified_ = answer.modified;
    size_ = answer.total;
    start_.resize(answer.filled);
  }
  /// Returns the URL without user and query, which may be secrets.
  [[nodiscard]] std::string name() const {
    const std::string plain = url_.substr(0, url_.find_first_of("?#"));
    const std::size_t host = plain.find("//") + 2;
    const std::size_t user = plain.substr(0, plain.find('/', host)).rfind('@');
    return user == std::string::npos || host < 2 ? plain
                                                 : plain.substr(0, host) + plain.substr(user + 1);
  }
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    if (to.empty()) return;
    if (offset > size_ || to.size() > size_ - offset) give_up(ErrorCode::kFileChanged, "it ends");
    if (offset + to.size() <= start_.size()) {
      std::copy_n(start_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    } else {
      (void)get(offset, to);
    }
  }
  void read_parts(std::uint64_t offset, std::uint64_t nbytes,
                  std::span<const safetensors::ReadPiece> parts) const override {
    if (parts.size() == 1) return read_at(parts[0].offset, parts[0].to);
    std::vector<std::byte> all(static_cast<std::size_t>(nbytes));  // one request for all parts
    read_at(offset, all);
    for (const safetensors::ReadPiece& part : parts) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(part.offset - offset);
      std::copy_n(from, part.to.size(), part.to.begin());
    }
  }
  [[nodiscard]] safetensors::ReadCost cost() const noexcept override {
    return {.gap_nbytes = 1 << 20,  // about what comes in while a request takes its way
            .chunk_nbytes = 8 << 20,
            .first_nbytes = kStart,
            .is_request = true};
  }
  [[nodiscard]] unsigned concurrency() const noexcept override { return 8; }

 private:
  static constexpr std::size_t kStart = 64 << 10;
  static constexpr int kAttempts = 5;

  [[noreturn]] void give_up(ErrorCode code, const std::string& why) const {
    safetensors::fail(code, why, {.path = name()});
  }

  static CURL* connection() {
    thread_local const std::unique_ptr<CURL, void (*)(CURL*)> handle(curl_easy_init(),
                                                                     curl_easy_cleanup);
    if (!handle) throw std::bad_alloc();
    curl_easy_reset(handle.get());  // keeps the connection
    return handle.get();
  }

  /// Fills `to` with the bytes from `begin` on; at most, while the size of the file is not known.
  Answer get(std::uint64_t begin, std::span<std::byte> to) const {
    for (int attempt = 1;; ++attempt) {
      Answer answer{.connection = connection(), .to = to};
      const CURLcode code = perform(answer, begin);
      const long status = answer.status();
      const bool is_answer = code == CURLE_OK || code == CURLE_WRITE_ERROR;
      const std::string why = !is_answer      ? curl_easy_strerror(code)
                              : status == 206 ? "the answer ended early"
                                              : "status " + std::to_string(status);
      if (status == 206 && (is_answer || answer.filled != 0)) {  // else headers may be missing
        if (is_complete(answer, begin)) return answer;
      } else if (status == 200 && (size_ == 0 || validator().empty())) {
        give_up(ErrorCode::kIo, "the server does not serve ranges of the file");
      } else if (size_ != 0 && (status == 200 || status == 416)) {
        give_up(ErrorCode::kFileChanged, "the file has changed since it was opened");
      } else if (status >= 300 && status < 500 && status != 408 && status != 429) {
        give_up(ErrorCode::kIo, why);
      }
      if (attempt == kAttempts || code == CURLE_PEER_FAILED_VERIFICATION ||
          code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
          code == CURLE_TOO_MANY_REDIRECTS) {
        give_up(ErrorCode::kIo, why + ", attempt " + std::to_string(attempt));
      }
      curl_off_t wanted = 0;  // seconds, as the server says
      curl_easy_getinfo(answer.connection, CURLINFO_RETRY_AFTER, &wanted);
      std::this_thread::sleep_for(std::max<std::chrono::milliseconds>(
          std::chrono::milliseconds(50 << attempt),
          std::chrono::seconds(std::min<curl_off_t>(wanted, 30))));
    }
  }

  CURLcode perform(Answer& answer, std::uint64_t begin) const {
    CURL* const handle = answer.connection;
    const std::string range =
        std::to_string(begin) + "-" + std::to_string(begin + answer.to.size() - 1);
    const std::string condition = "If-Range: " + validator();
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
        validator().empty() ? nullptr : curl_slist_append(nullptr, condition.c_str()),
        curl_slist_free_all);
    curl_easy_setopt(handle, CURLOPT_URL, url_.c_str());
    curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");  // also of redirects
    curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(handle, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);  // as there are several threads
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1000L);  // bytes a second, for
    curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, 10L);     // seconds
    curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(handle, CURLOPT_HEADERDATA, &answer);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &answer);
    return curl_easy_perform(handle);
  }

  /// Returns whether a partial answer is complete. Throws if a new attempt would not help.
  bool is_complete(const Answer& answer, std::uint64_t begin) const {
    if (size_ != 0 && (answer.total != size_ || answer.etag != etag_ ||
                       (etag_.empty() && answer.modified != modified_))) {
      give_up(ErrorCode::kFileChanged, "the file has changed since it was opened");
    }
    const std::uint64_t wanted = std::min(answer.to.size() + begin, answer.total) - begin;
    if (answer.begin != begin || answer.last + 1 != begin + wanted || answer.total == 0 ||
        answer.is_longer || !(answer.encoding.empty() || answer.encoding == "identity")) {
      give_up(ErrorCode::kIo, "the server answers with other bytes than " + std::to_string(begin) +
                                  " to " + std::to_string(begin + answer.to.size()));
    }
    return answer.filled == wanted;
  }

  /// Returns what the server compares: the ETag, unless it is a weak one, or the date.
  const std::string& validator() const {
    return etag_.empty() || etag_.starts_with("W/") ? modified_ : etag_;
  }

  std::string url_;
  std::vector<std::byte> start_;  // of the file
  std::string etag_;
  std::string modified_;
  std::uint64_t size_ = 0;  // 0: not known yet
};

void copy_tensors(const safetensors::SafeOpen& file, std::span<char*> names, const char* path) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<safetensors::TensorData> copies;
  std::vector<safetensors::LoadTensor> tensors;
  for (const char* name : names) {
    const safetensors::TensorInfo& info = file.at(name);
    std::vector<std::byte>& bytes = memory.emplace_back(static_cast<std::size_t>(info.nbytes()));
    copies.push_back({info.name, info.shape, bytes, info.dtype});
    tensors.push_back({.name = info.name,
                       .offset = file.position(info),
                       .nbytes = info.nbytes(),
                       .to = reinterpret_cast<std::uintptr_t>(bytes.data())});
  }
  safetensors::Load load({}, {file.source()});  // to host memory, by several requests at once
  load.add(tensors);
  load.finish();
  load.wait();
  safetensors::save_file(copies, path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc == 3) {
    std::cerr << "usage: " << argv[0] << " URL [COPY TENSOR...]\n";
    return 2;
  }
  try {
    const auto source = std::make_shared<const UrlSource>(argv[1]);
    const safetensors::SafeOpen file(source, source->name());
    for (const safetensors::TensorInfo& info : file.header().tensors()) {
      if (argc == 2) std::cout << info.name << ' ' << safetensors::name(info.dtype) << '\n';
    }
    if (argc > 3) copy_tensors(file, std::span(argv, std::size_t(argc)).subspan(3), argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
