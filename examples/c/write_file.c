/* Writes a file with the names and shapes of GPT-2 and made-up values, for the other examples.
 * WIDTH is 768 in the real model; the default is smaller.
 *
 *   write_file FILE [WIDTH]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors/safetensors.h"

enum { LAYERS = 12, VOCABULARY = 50, POSITIONS = 16, MAX_TENSORS = 2 + 12 * LAYERS + 2 };

/* The tensors to write, and the memory that they refer to. */
typedef struct model {
  safetensors_tensor tensors[MAX_TENSORS];
  char names[MAX_TENSORS][40];
  uint64_t shapes[MAX_TENSORS][2];
  size_t count;
} model;

/* Adds a tensor of shape [rows, columns], or [columns] if rows is 0. Returns false if there is not
 * enough memory. */
static int add(model* m, const char* name, uint64_t rows, uint64_t columns) {
  const size_t at = m->count;
  const size_t elements = (size_t)((rows == 0 ? 1 : rows) * columns);
  float* values = malloc(elements * sizeof *values);
  safetensors_tensor* tensor = &m->tensors[at];
  size_t i;
  if (values == NULL) return 0;
  for (i = 0; i < elements; ++i) values[i] = (float)((int)((i * 7 + at * 13) % 101) - 50) / 64.0F;
  snprintf(m->names[at], sizeof m->names[at], "%s", name);
  m->shapes[at][0] = rows == 0 ? columns : rows;
  m->shapes[at][1] = columns;
  memset(tensor, 0, sizeof *tensor);
  tensor->name = m->names[at];
  tensor->name_size = SAFETENSORS_NUL_TERMINATED;
  tensor->shape = m->shapes[at];
  tensor->rank = rows == 0 ? 1 : 2;
  tensor->data = values;
  tensor->nbytes = elements * sizeof *values;
  tensor->dtype = SAFETENSORS_F32;
  ++m->count;
  return 1;
}

static int add_layer(model* m, int layer, uint64_t width) {
  const struct {
    const char* name;
    uint64_t rows, columns;
  } parts[] = {{"ln_1.weight", 0, width},
               {"ln_1.bias", 0, width},
               {"attn.c_attn.weight", width, 3 * width},
               {"attn.c_attn.bias", 0, 3 * width},
               {"attn.c_proj.weight", width, width},
               {"attn.c_proj.bias", 0, width},
               {"ln_2.weight", 0, width},
               {"ln_2.bias", 0, width},
               {"mlp.c_fc.weight", width, 4 * width},
               {"mlp.c_fc.bias", 0, 4 * width},
               {"mlp.c_proj.weight", 4 * width, width},
               {"mlp.c_proj.bias", 0, width}};
  size_t i;
  for (i = 0; i < sizeof parts / sizeof parts[0]; ++i) {
    char name[40];
    snprintf(name, sizeof name, "h.%d.%s", layer, parts[i].name);
    if (!add(m, name, parts[i].rows, parts[i].columns)) return 0;
  }
  return 1;
}

static int add_all(model* m, uint64_t width) {
  int layer;
  if (!add(m, "wte.weight", VOCABULARY, width) || !add(m, "wpe.weight", POSITIONS, width)) return 0;
  for (layer = 0; layer < LAYERS; ++layer) {
    if (!add_layer(m, layer, width)) return 0;
  }
  return add(m, "ln_f.weight", 0, width) && add(m, "ln_f.bias", 0, width);
}

int main(int argc, char** argv) {
  static model m;
  const safetensors_item metadata[] = {{"format", 6, "pt", 2}};
  safetensors_save_options options;
  safetensors_error error;
  int status = 1;
  size_t i;
  const long width = argc == 3 ? strtol(argv[2], NULL, 10) : 8;
  if (argc < 2 || argc > 3 || width < 1 || width > 4096) {
    fprintf(stderr, "usage: %s FILE [WIDTH]\n", argv[0]);
    return 2;
  }
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.metadata = metadata;
  options.metadata_count = 1;
  if (!add_all(&m, (uint64_t)width)) {
    fprintf(stderr, "out of memory\n");
  } else if (safetensors_save(SAFETENSORS_TEXT(argv[1]), m.tensors, m.count, &options, &error) !=
             SAFETENSORS_OK) {
    fprintf(stderr, "%s\n", error.text);
  } else {
    status = 0;
  }
  for (i = 0; i < m.count; ++i) free((void*)m.tensors[i].data);
  return status;
}
