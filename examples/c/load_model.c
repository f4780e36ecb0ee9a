/* Loads all tensors of a model into memory of the program, and adds up the bytes of each while the
 * others are still read. A program for a GPU takes the memory from its driver, and sets `device`.
 *
 *   load_model MODEL
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors/safetensors.h"

static safetensors_error error;

/* Memory for tensors, each at a multiple of 64 bytes. */
struct arena {
  unsigned char* begin;
  size_t room;
  size_t used;
  unsigned char** places; /* of each tensor */
};

static size_t padded(uint64_t nbytes) { return ((size_t)nbytes + 63) / 64 * 64; }

static int32_t allocate(void* context, size_t number, uint64_t nbytes, void** to) {
  struct arena* const arena = context;
  if (padded(nbytes) > arena->room - arena->used) return 1;
  *to = arena->places[number] = arena->begin + arena->used;
  arena->used += padded(nbytes);
  return 0;
}

static int32_t load_all(const safetensors_file* model, const safetensors_tensor* tensors,
                        const safetensors_request* requests, size_t count, struct arena* arena) {
  safetensors_load_options options;
  safetensors_load* load;
  uint64_t nbytes = 0, sum = 0, i;
  size_t number;
  int32_t code;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.context = arena;
  options.allocate = allocate;
  code = safetensors_load_start(model, requests, count, &options, &load, &error);
  if (code != SAFETENSORS_OK) return code;
  for (;;) {
    code = safetensors_load_next(load, &number, NULL, &error);
    if (code != SAFETENSORS_OK || number == count) break;
    for (i = 0; i < tensors[number].nbytes; ++i) sum += arena->places[number][i];
    nbytes += tensors[number].nbytes;
  }
  safetensors_load_free(load); /* stops it after an error */
  if (code == SAFETENSORS_OK) {
    printf("%.0f tensors, %.0f bytes, sum %.0f\n", (double)count, (double)nbytes, (double)sum);
  }
  return code;
}

static int run(const safetensors_file* model) {
  const size_t count = safetensors_count(model);
  safetensors_tensor* tensors = calloc(count + 1, sizeof *tensors);
  safetensors_request* requests = calloc(count + 1, sizeof *requests);
  struct arena arena = {NULL, 64, 0, calloc(count + 1, sizeof *arena.places)};
  int32_t code = tensors == NULL || requests == NULL || arena.places == NULL;
  size_t i;
  if (code != 0) snprintf(error.text, sizeof error.text, "out of memory");
  for (i = 0; code == 0 && i < count; ++i) {
    code = safetensors_at(model, i, &tensors[i], &error);
    requests[i].tensor = &tensors[i];
    requests[i].dtype = SAFETENSORS_AS_STORED;
    arena.room += padded(tensors[i].nbytes);
  }
  if (code == 0) {
    arena.begin = malloc(arena.room);
    if (arena.begin == NULL) arena.room = 0; /* then `allocate` fails */
    code = load_all(model, tensors, requests, count, &arena);
  }
  if (code != 0) fprintf(stderr, "%s\n", error.text);
  free(arena.begin);
  free(arena.places);
  free(requests);
  free(tensors);
  return code != 0;
}

int main(int argc, char** argv) {
  safetensors_options options;
  safetensors_file* model;
  int status;
  if (argc != 2) {
    fprintf(stderr, "usage: %s MODEL\n", argv[0]);
    return 2;
  }
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.flags = SAFETENSORS_FOR_DEVICE;
  if (safetensors_open_model(SAFETENSORS_TEXT(argv[1]), &options, &model, &error) !=
      SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  status = run(model);
  safetensors_close(model);
  return status;
}
