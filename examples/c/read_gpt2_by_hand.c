/* Prints the floats of one tensor of GPT-2 with only the C standard library. It shows how simple
 * the format is, and why a library is needed: this program is for trusted files only. It checks no
 * number, takes the first text that looks like the name (perhaps in the metadata), and does not
 * decode escaped names. read_gpt2.c has none of these faults.
 *
 *   read_gpt2_by_hand FILE [NAME]    default NAME: h.4.ln_1.bias
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t little_endian(const unsigned char* bytes, int count) {
  uint64_t value = 0;
  while (count-- > 0) value = value << 8 | bytes[count];
  return value;
}

/* Returns the header as a string, or NULL. The first 8 bytes of the file are its length. */
static char* read_header(FILE* file, uint64_t* length) {
  unsigned char start[8];
  char* header;
  if (fread(start, 1, sizeof start, file) != sizeof start) return NULL;
  *length = little_endian(start, 8);
  if (*length > 100000000) return NULL; /* the format's limit */
  header = malloc((size_t)*length + 1);
  if (header == NULL) return NULL;
  if (fread(header, 1, (size_t)*length, file) != *length) {
    free(header);
    return NULL;
  }
  header[*length] = '\0';
  return header;
}

/* Finds the range of the tensor's bytes, relative to the end of the header. Returns whether the
 * tensor was found. */
static int find_offsets(const char* header, const char* name, uint64_t* begin, uint64_t* end) {
  char quoted[256];
  const char* at;
  char* rest;
  if (snprintf(quoted, sizeof quoted, "\"%s\":", name) >= (int)sizeof quoted) return 0;
  at = strstr(header, quoted);
  if (at != NULL) at = strstr(at, "\"data_offsets\":[");
  if (at == NULL) return 0;
  *begin = strtoull(strchr(at, '[') + 1, &rest, 10);
  if (*rest != ',') return 0;
  *end = strtoull(rest + 1, &rest, 10);
  return *rest == ']' && *begin <= *end;
}

static int print_floats(FILE* file, uint64_t count) {
  while (count-- > 0) {
    unsigned char bytes[4];
    uint32_t bits;
    float value;
    if (fread(bytes, 1, sizeof bytes, file) != sizeof bytes) return 0;
    bits = (uint32_t)little_endian(bytes, 4);
    memcpy(&value, &bits, sizeof value);
    printf("%.9g\n", value);
  }
  return 1;
}

int main(int argc, char** argv) {
  const char* name = argc == 3 ? argv[2] : "h.4.ln_1.bias";
  uint64_t length = 0, begin = 0, end = 0;
  int good = 0;
  FILE* file;
  char* header;
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: %s FILE [NAME]\n", argv[0]);
    return 2;
  }
  file = fopen(argv[1], "rb");
  if (file == NULL) {
    perror(argv[1]);
    return 1;
  }
  header = read_header(file, &length);
  if (header != NULL && find_offsets(header, name, &begin, &end)) {
    good = fseek(file, (long)(8 + length + begin), SEEK_SET) == 0 &&
           print_floats(file, (end - begin) / 4);
  }
  if (!good) fprintf(stderr, "%s: no header, or no tensor %s\n", argv[1], name);
  free(header);
  fclose(file);
  return good ? 0 : 1;
}
