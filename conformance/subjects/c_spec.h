/* Reads the specs of the conformance kit: JSON files with known keys that cases.py has written. The
 * program ends if a spec is not such a file. */
#ifndef C_SPEC_H
#define C_SPEC_H

#include <safetensors/safetensors.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct spec {
  char* text; /* the file, in which all names and bytes are decoded in place */
  safetensors_tensor* tensors;
  size_t count;
  safetensors_item* metadata; /* NULL if the spec has none */
  size_t metadata_count;
} spec;

static void spec_require(int is_valid) {
  if (is_valid) return;
  fputs("cannot read the spec: wrong form, no such file, or no memory\n", stderr);
  exit(3);
}

/* Returns `array` with room for one more element. */
static void* spec_grow(void* array, size_t count, size_t element_size) {
  void* const room = realloc(array, (count + 1) * element_size);
  spec_require(room != NULL);
  return room;
}

/* Returns whether the next character other than white space is `wanted`, and steps over it. */
static int spec_next(char** at, char wanted) {
  *at += strspn(*at, " \t\r\n");
  if (**at != wanted) return 0;
  ++*at;
  return 1;
}

static unsigned long spec_hex(const char* at, int digits) {
  char text[5] = {0};
  char* end;
  for (int i = 0; i < digits && at[i]; ++i) text[i] = at[i];
  const unsigned long value = strtoul(text, &end, 16);
  spec_require(end == text + digits);
  return value;
}

/* Appends a code point in UTF-8. */
static char* spec_put(char* to, unsigned long code) {
  if (code < 0x80) {
    *to++ = (char)code;
    return to;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3; /* bytes after the first */
  *to++ = (char)((0xff << (7 - more) & 0xff) | code >> 6 * more);
  for (int i = more - 1; i >= 0; --i) *to++ = (char)(0x80 | (code >> 6 * i & 0x3f));
  return to;
}

/* Decodes a string in place, and ends it with a NUL. */
static char* spec_text(char** at, size_t* size) {
  spec_require(spec_next(at, '"'));
  char* const begin = *at;
  char* to = begin;
  const char* from = begin;
  while (*from != '"') {
    spec_require(*from != '\0');
    if (*from != '\\') {
      *to++ = *from++;
      continue;
    }
    static const char kEscapes[] = "\"\\/bfnrt", kValues[] = "\"\\/\b\f\n\r\t";
    const char* const found = strchr(kEscapes, from[1]);
    if (found && *found) {
      *to++ = kValues[found - kEscapes];
      from += 2;
      continue;
    }
    spec_require(from[1] == 'u');
    unsigned long code = spec_hex(from + 2, 4);
    from += 6;
    if (code >= 0xd800 && code < 0xdc00) { /* the first half of a surrogate pair */
      spec_require(from[0] == '\\' && from[1] == 'u');
      code = 0x10000 + ((code - 0xd800) << 10) + (spec_hex(from + 2, 4) - 0xdc00);
      from += 6;
    }
    to = spec_put(to, code);
  }
  *at = (char*)from + 1;
  *to = '\0'; /* may replace the closing quote */
  *size = (size_t)(to - begin);
  return begin;
}

static void spec_shape(char** at, safetensors_tensor* tensor) {
  uint64_t* shape = NULL;
  spec_require(spec_next(at, '['));
  while (!spec_next(at, ']')) {
    spec_require(!tensor->rank || spec_next(at, ','));
    shape = spec_grow(shape, tensor->rank, sizeof *shape);
    char* const begin = *at;
    shape[tensor->rank++] = strtoull(begin, at, 10);
    spec_require(*at != begin);
  }
  tensor->shape = shape;
}

static void spec_tensor(char** at, safetensors_tensor* tensor) {
  memset(tensor, 0, sizeof *tensor);
  spec_require(spec_next(at, '{'));
  do {
    size_t size;
    const char* const key = spec_text(at, &size);
    spec_require(spec_next(at, ':'));
    if (strcmp(key, "shape") == 0) {
      spec_shape(at, tensor);
      continue;
    }
    char* const value = spec_text(at, &size);
    if (strcmp(key, "name") == 0) {
      tensor->name = value;
      tensor->name_size = size;
    } else if (strcmp(key, "dtype") == 0) {
      tensor->dtype = safetensors_dtype_from_name(value, size);
    } else if (strcmp(key, "bytes") == 0) {
      for (size_t i = 0; i < size / 2; ++i) value[i] = (char)spec_hex(value + 2 * i, 2);
      tensor->data = value;
      tensor->nbytes = size / 2;
    }
  } while (spec_next(at, ','));
  spec_require(spec_next(at, '}'));
}

static void spec_metadata(char** at, spec* found) {
  found->metadata = spec_grow(NULL, 0, sizeof *found->metadata); /* not NULL, even if empty */
  spec_require(spec_next(at, '{'));
  while (!spec_next(at, '}')) {
    spec_require(!found->metadata_count || spec_next(at, ','));
    found->metadata = spec_grow(found->metadata, found->metadata_count, sizeof *found->metadata);
    safetensors_item* const item = &found->metadata[found->metadata_count++];
    item->key = spec_text(at, &item->key_size);
    spec_require(spec_next(at, ':'));
    item->value = spec_text(at, &item->value_size);
  }
}

static char* spec_file(const char* path) {
  FILE* const file = fopen(path, "rb");
  char* text = NULL;
  size_t size = 0;
  spec_require(file != NULL);
  for (int c; (c = getc(file)) != EOF;) {
    if (size % 4096 == 0) text = spec_grow(text, size + 4096, 1); /* with room for a NUL */
    text[size++] = (char)c;
  }
  fclose(file);
  spec_require(size > 0);
  text[size] = '\0';
  return text;
}

/* Reads a spec. Free it with spec_free. */
static spec spec_read(const char* path) {
  spec found = {0};
  char* at = found.text = spec_file(path);
  spec_require(spec_next(&at, '{'));
  do {
    size_t size;
    const char* const key = spec_text(&at, &size);
    spec_require(spec_next(&at, ':'));
    if (strcmp(key, "metadata") == 0) {
      spec_metadata(&at, &found);
      continue;
    }
    spec_require(spec_next(&at, '['));
    while (!spec_next(&at, ']')) {
      spec_require(!found.count || spec_next(&at, ','));
      found.tensors = spec_grow(found.tensors, found.count, sizeof *found.tensors);
      spec_tensor(&at, &found.tensors[found.count++]);
    }
  } while (spec_next(&at, ','));
  return found;
}

static void spec_free(spec* found) {
  for (size_t i = 0; i < found->count; ++i) free((void*)found->tensors[i].shape);
  free(found->tensors);
  free(found->metadata);
  free(found->text);
}

#endif
