/* The C interface of this project's library.
 *
 *   cc -std=c99 -I include conformance/subjects/c_library.c -o subject -lsafetensors
 */
#include <safetensors/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_spec.h"

#define MAX_INDICES 8

static void put_text(const char* text, size_t size) {
  putchar('"');
  for (size_t i = 0; i < size; ++i) {
    const unsigned char c = (unsigned char)text[i];
    if (c == '"' || c == '\\' || c < 0x20 || c == 0x7f) {
      printf("\\u%04x", c);
    } else {
      putchar(c);
    }
  }
  putchar('"');
}

static void put_error(const char* text) {
  printf("{\"error\": ");
  put_text(text, strlen(text));
  printf("}\n");
}

static void put_shape(const uint64_t* shape, size_t rank) {
  putchar('[');
  for (size_t i = 0; i < rank; ++i) printf("%s%llu", i ? "," : "", (unsigned long long)shape[i]);
  putchar(']');
}

static void put_bytes(const unsigned char* bytes, uint64_t count) {
  printf("\"hex:");
  for (uint64_t i = 0; i < count; ++i) printf("%02x", bytes[i]);
  putchar('"');
}

static void* allocate(uint64_t nbytes) {
  void* const room = malloc(nbytes ? (size_t)nbytes : 1);
  if (!room) abort();
  return room;
}

/* Opens a file that is then read, and not mapped. */
static safetensors_file* open_file(const char* path, safetensors_error* error) {
  safetensors_file* file = NULL;
  safetensors_options options = {sizeof options, SAFETENSORS_PREAD, 0, NULL, 0, NULL, 0, NULL};
  (void)safetensors_open_model(SAFETENSORS_TEXT(path), &options, &file, error);
  return file;
}

/* Reads all tensors before the first byte of the answer, which may still become an error. */
static int32_t read_all(const safetensors_file* file, safetensors_tensor* tensors,
                        safetensors_request* requests, safetensors_error* error) {
  const size_t count = safetensors_count(file);
  for (size_t i = 0; i < count; ++i) {
    if (safetensors_at(file, i, &tensors[i], error)) return error->code;
    requests[i].tensor = &tensors[i];
    requests[i].to = allocate(tensors[i].nbytes);
    requests[i].room = tensors[i].nbytes;
    requests[i].dtype = SAFETENSORS_AS_STORED;
  }
  return safetensors_read(file, requests, count, NULL, error);
}

static void answer_read(const char* path, safetensors_error* error) {
  safetensors_file* const file = open_file(path, error);
  if (!file) {
    put_error(error->text);
    return;
  }
  const size_t count = safetensors_count(file);
  safetensors_tensor* const tensors = calloc(count + 1, sizeof *tensors);
  safetensors_request* const requests = calloc(count + 1, sizeof *requests);
  safetensors_file_info info;
  if (!tensors || !requests) abort();
  if (safetensors_file_at(file, 0, &info, error) || read_all(file, tensors, requests, error)) {
    put_error(error->text);
  } else {
    printf("{\"tensors\": {");
    for (size_t i = 0; i < count; ++i) {
      const safetensors_tensor* const tensor = &tensors[i];
      if (i) putchar(',');
      put_text(tensor->name, tensor->name_size);
      printf(": [\"%s\", ", safetensors_dtype_name(tensor->dtype));
      put_shape(tensor->shape, tensor->rank);
      putchar(',');
      put_bytes(requests[i].to, tensor->nbytes);
      putchar(']');
    }
    printf("}, \"metadata\": {");
    for (size_t i = 0; i < info.metadata_count; ++i) {
      safetensors_item item;
      if (safetensors_metadata_at(file, 0, i, &item, error)) abort();
      if (i) putchar(',');
      put_text(item.key, item.key_size);
      putchar(':');
      put_text(item.value, item.value_size);
    }
    printf("}}\n");
  }
  for (size_t i = 0; i < count; ++i) free(requests[i].to);
  free(requests);
  free(tensors);
  safetensors_close(file);
}

static void answer_write(const char* spec_path, const char* out, safetensors_error* error) {
  spec wanted = spec_read(spec_path);
  safetensors_writer* writer = NULL;
  const safetensors_save_options options = {
      sizeof options, wanted.metadata, wanted.metadata_count, NULL, 0, 0};
  int32_t code = safetensors_writer_create(SAFETENSORS_TEXT(out), wanted.tensors, wanted.count,
                                           &options, &writer, error);
  for (size_t i = 0; i < wanted.count && !code; ++i) {
    const safetensors_tensor* const tensor = &wanted.tensors[i];
    code = safetensors_writer_write(writer, tensor->name, tensor->name_size, 0, tensor->data,
                                    tensor->nbytes, error);
  }
  if (!code) code = safetensors_writer_commit(writer, error);
  if (code) {
    put_error(error->text);
  } else {
    printf("{}\n");
  }
  safetensors_writer_free(writer);
  spec_free(&wanted);
}

/* Reads a text such as "1:3,...,-1". Returns the number of indices, or -1. */
static int parse_index(const char* text, safetensors_index* indices) {
  int count = 0;
  for (const char* at = text;; ++at) {
    if (count == MAX_INDICES) return -1;
    safetensors_index* const index = &indices[count++];
    memset(index, 0, sizeof *index);
    if (strncmp(at, "None", 4) == 0) {
      index->kind = SAFETENSORS_NEW_AXIS;
      at += 4;
    } else if (strncmp(at, "...", 3) == 0) {
      index->kind = SAFETENSORS_ELLIPSIS;
      at += 3;
    } else {
      char* end;
      index->kind = SAFETENSORS_ONE;
      index->start = strtoll(at, &end, 10);
      if (*end == ':') {
        index->kind = SAFETENSORS_RANGE;
        at = end + 1;
        index->stop = strtoll(at, &end, 10);
        if (end == at) index->stop = SAFETENSORS_END;
        if (*end == ':') index->step = strtoll(end + 1, &end, 10);
      }
      at = end;
    }
    if (*at == '\0') return count;
    if (*at != ',') return -1;
  }
}

static void answer_slice(const char* path, const char* name, const char* text,
                         safetensors_error* error) {
  safetensors_tensor tensor, part;
  safetensors_index indices[MAX_INDICES];
  uint64_t shape[2 * MAX_INDICES];
  const int count = parse_index(text, indices);
  if (count < 0) {
    put_error("not an index");
    return;
  }
  safetensors_file* const file = open_file(path, error);
  if (!file) {
    put_error(error->text);
    return;
  }
  if (safetensors_find(file, SAFETENSORS_TEXT(name), &tensor, error) ||
      safetensors_slice(file, &tensor, indices, (size_t)count, shape, &part, error)) {
    put_error(error->text);
  } else {
    void* const data = allocate(part.nbytes);
    const safetensors_request request = {
        &tensor, indices, (size_t)count, data, part.nbytes, SAFETENSORS_AS_STORED, 0};
    if (safetensors_read(file, &request, 1, NULL, error)) {
      put_error(error->text);
    } else {
      printf("{\"shape\": ");
      put_shape(part.shape, part.rank);
      printf(", \"digest\": ");
      put_bytes(data, part.nbytes);
      printf("}\n");
    }
    free(data);
  }
  safetensors_close(file);
}

int main(int argc, char** argv) {
  static const char* const kRequests[] = {"read", "write", "slice"};
  safetensors_error error;
  int arguments = 0; /* of one answer: 1, 2 or 3 */
  for (int i = 0; i < 3; ++i) {
    if (argc > 1 && strcmp(argv[1], kRequests[i]) == 0) arguments = i + 1;
  }
  if (arguments == 0) return 2;
  for (int i = 2; i + arguments <= argc; i += arguments) {
    if (arguments == 1) {
      answer_read(argv[i], &error);
    } else if (arguments == 2) {
      answer_write(argv[i], argv[i + 1], &error);
    } else {
      answer_slice(argv[i], argv[i + 1], argv[i + 2], &error);
    }
    fflush(stdout);
  }
  return 0;
}
