/* The C interface as a user has it: saves a file, opens it, reads it. Compiled as C and as C++. */
#include <safetensors/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static safetensors_error error;

static void check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "failed: %s (%s)\n", what, error.text);
  exit(1);
}

static void save(const char* path) {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const uint64_t shape[2] = {2, 3};
  safetensors_item metadata = {"format", 6, "pt", SAFETENSORS_NUL_TERMINATED};
  safetensors_save_options options;
  safetensors_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.name = "weight";
  tensor.name_size = SAFETENSORS_NUL_TERMINATED;
  tensor.shape = shape;
  tensor.rank = 2;
  tensor.data = values;
  tensor.nbytes = sizeof values;
  tensor.dtype = SAFETENSORS_F32;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.metadata = &metadata;
  options.metadata_count = 1;
  check(safetensors_save(SAFETENSORS_TEXT(path), &tensor, 1, &options, &error) == SAFETENSORS_OK,
        "save");
}

/* What a sink has received. */
typedef struct memory {
  char bytes[512];
  size_t nbytes;
} memory;

static int32_t receive(void* context, uint64_t offset, const void* bytes, size_t nbytes) {
  memory* to = (memory*)context;
  if (offset > sizeof to->bytes || nbytes > sizeof to->bytes - offset) return 1;
  memcpy(to->bytes + offset, bytes, nbytes);
  if (to->nbytes < offset + nbytes) to->nbytes = (size_t)offset + nbytes;
  return 0;
}

/* Reads a tensor, or what `count` indices select from it. */
static int32_t read(const safetensors_file* file, const safetensors_tensor* tensor,
                    const safetensors_index* indices, size_t count, int32_t dtype, void* to,
                    size_t room) {
  safetensors_request request;
  memset(&request, 0, sizeof request);
  request.tensor = tensor;
  request.indices = indices;
  request.index_count = count;
  request.to = to;
  request.room = room;
  request.dtype = dtype;
  return safetensors_read(file, &request, 1, NULL, &error);
}

/* Copies a file tensor by tensor, to a path and to a sink. */
static void write_again(const safetensors_file* file, const char* path) {
  static memory to;
  safetensors_sink sink;
  safetensors_save_options options;
  safetensors_tensor tensor;
  safetensors_writer* writer = NULL;
  safetensors_file* written = NULL;
  float values[6];
  check(safetensors_at(file, 0, &tensor, &error) == SAFETENSORS_OK &&
            read(file, &tensor, NULL, 0, SAFETENSORS_AS_STORED, values, sizeof values) ==
                SAFETENSORS_OK,
        "a tensor to write again");
  to.nbytes = 0;
  memset(&sink, 0, sizeof sink);
  sink.size = sizeof sink;
  sink.context = &to;
  sink.write = receive;
  check(safetensors_writer_create_sink(&sink, &tensor, 1, NULL, &writer, &error) == SAFETENSORS_OK,
        "writer_create_sink");
  check(safetensors_writer_commit(writer, &error) == SAFETENSORS_MISSING_TENSORS &&
            strstr(error.text, "weight") != NULL,
        "a missing tensor");
  check(safetensors_writer_write(writer, "weight", 6, 0, values, 8, &error) == SAFETENSORS_OK &&
            safetensors_writer_write(writer, "weight", 6, 8, values + 2, 16, &error) ==
                SAFETENSORS_OK &&
            safetensors_writer_commit(writer, &error) == SAFETENSORS_OK,
        "parts of a tensor");
  safetensors_writer_free(writer);
  check(safetensors_open_memory(to.bytes, to.nbytes, &written, &error) == SAFETENSORS_OK &&
            safetensors_count(written) == 1,
        "what a sink received");
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.flags = SAFETENSORS_FSYNC;
  check(safetensors_writer_create(SAFETENSORS_TEXT(path), &tensor, 1, &options, &writer, &error) ==
            SAFETENSORS_OK,
        "writer_create");
  check(safetensors_at(written, 0, &tensor, &error) == SAFETENSORS_OK &&
            safetensors_writer_copy(writer, "weight", 6, written, &tensor, &error) ==
                SAFETENSORS_OK &&
            safetensors_writer_write(writer, SAFETENSORS_TEXT("weight"), 0, values, sizeof values,
                                     &error) == SAFETENSORS_WRITTEN_TWICE &&
            safetensors_writer_commit(writer, &error) == SAFETENSORS_OK,
        "writer_copy");
  safetensors_writer_free(writer);
  safetensors_close(written);
}

static void use(const safetensors_file* file) {
  safetensors_tensor tensor, part;
  safetensors_index column[2];
  uint64_t shape[4];
  float values[6], two[2];
  double wide[2];
  safetensors_file_info info;
  char json[256];
  size_t size = 0;
  check(safetensors_count(file) == 1, "count");
  check(safetensors_at(file, 0, &tensor, &error) == SAFETENSORS_OK, "at");
  check(strcmp(tensor.name, "weight") == 0 && tensor.name_size == 6, "name");
  check(safetensors_find(file, SAFETENSORS_TEXT("weight"), &tensor, &error) == SAFETENSORS_OK,
        "find");
  check(tensor.rank == 2 && tensor.shape[0] == 2 && tensor.shape[1] == 3, "shape");
  check(strcmp(safetensors_dtype_name(tensor.dtype), "F32") == 0, "dtype");
  check(strcmp(safetensors_metadata_value(file, 0, "format", 6, &size), "pt") == 0 && size == 2,
        "metadata_value");
  check(safetensors_file_count(file) == 1 &&
            safetensors_file_at(file, 0, &info, &error) == SAFETENSORS_OK &&
            info.data_offset == 8 + info.header_nbytes && info.metadata_count == 1,
        "file_at");
  check(info.header_nbytes <= sizeof json &&
            safetensors_header_json(file, 0, json, (size_t)info.header_nbytes, &error) ==
                SAFETENSORS_OK &&
            json[0] == '{',
        "header_json");

  check(
      read(file, &tensor, NULL, 0, SAFETENSORS_AS_STORED, values, sizeof values) == SAFETENSORS_OK,
      "read");
  check(values[4] == 5.0F, "values");
  if (tensor.data != NULL) check(memcmp(tensor.data, values, sizeof values) == 0, "data");

  memset(column, 0, sizeof column);
  column[0].kind = SAFETENSORS_ALL;
  column[1].kind = SAFETENSORS_ONE;
  column[1].start = -1;
  check(safetensors_slice(file, &tensor, column, 2, shape, &part, &error) == SAFETENSORS_OK &&
            part.rank == 1 && part.shape[0] == 2 && part.nbytes == sizeof two && part.data == NULL,
        "slice");
  check(read(file, &tensor, column, 2, SAFETENSORS_AS_STORED, two, sizeof two) == SAFETENSORS_OK &&
            two[0] == 3.0F && two[1] == 6.0F,
        "a column");
  check(read(file, &tensor, column, 2, SAFETENSORS_F64, wide, sizeof wide) == SAFETENSORS_OK &&
            wide[0] == 3.0 && wide[1] == 6.0,
        "a column as F64");

  check(safetensors_find(file, "nope", 4, &tensor, &error) == SAFETENSORS_TENSOR_NOT_FOUND &&
            error.code == SAFETENSORS_TENSOR_NOT_FOUND && strstr(error.text, "nope") != NULL,
        "a missing tensor");
}

int main(int argc, char** argv) {
  safetensors_file* file = NULL;
  safetensors_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  check(argc == 2, "usage: consumer_c FILE");
  check(safetensors_abi_version() == SAFETENSORS_ABI_VERSION, "ABI");
  check(strcmp(safetensors_version(), SAFETENSORS_VERSION) == 0, "version");
  save(argv[1]);
  for (; options.backend <= SAFETENSORS_DIRECT; ++options.backend) {
    check(safetensors_open_model(SAFETENSORS_TEXT(argv[1]), &options, &file, &error) ==
              SAFETENSORS_OK,
          "open");
    use(file);
    write_again(file, argv[1]);
    safetensors_close(file);
    save(argv[1]);
  }
  check(safetensors_open(SAFETENSORS_TEXT("/nowhere/at/all"), NULL, &file, &error) ==
                SAFETENSORS_IO &&
            error.os_error != 0 && strcmp(error.text + error.path, "/nowhere/at/all") == 0,
        "a missing file");
  puts("consumer: the C interface works");
  return 0;
}
