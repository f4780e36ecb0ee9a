// A binding of the C library for Go, and a program that uses it.
//
//	CGO_CFLAGS=-IINCLUDE_FOLDERS CGO_LDFLAGS="-LLIBRARY_FOLDER -lsafetensors_c" go build examples/go/main.go
//	main MODEL TENSOR QUANTISED WEIGHT FILE
//
// Lists MODEL, reads a slice of TENSOR as floats, writes it to FILE, reads FILE through callbacks, and
// decodes row 1 of a WEIGHT of the model QUANTISED. Floats are printed as their bits.
package main

/*
#include <stdlib.h>

#include "safetensors/weights.h"

// cgo has no pointers to Go functions, so these lead to the exported ones.
int64_t goRead(void*, uint64_t, void*, size_t, safetensors_error*);
void goRelease(void*);

static void set_functions(safetensors_source* source) {
  source->size = sizeof *source;
  source->read = goRead;
  source->release = goRelease;
}
*/
import "C"

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime/cgo"
	"strings"
	"unsafe"
)

// Error is what a function of the library failed with.
type Error struct {
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

// call calls a function of the library with room for an error.
func call(function func(*C.safetensors_error) C.int32_t) error {
	var raw C.safetensors_error
	if code := function(&raw); code != 0 {
		return &Error{int(code), C.GoString(&raw.text[0])}
	}
	return nil
}

// cText returns a pointer and a size for a text argument. The pointer of an empty text is not followed.
func cText(text string) (*C.char, C.size_t) {
	bytes := append([]byte(text), 0)
	return (*C.char)(unsafe.Pointer(&bytes[0])), C.size_t(len(text))
}

// goText copies a text of the library.
func goText(data *C.char, size C.size_t) string { return C.GoStringN(data, C.int(size)) }

// File is a file, or a model of several files.
type File struct{ raw *C.safetensors_file }

// Open opens a file, an index or a folder.
func Open(path string) (*File, error) {
	file := &File{}
	text, size := cText(path)
	return file, call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_open_model(text, size, nil, &file.raw, e)
	})
}

// Stream opens a file that the library reads through callbacks.
func Stream(from *os.File, label string) (*File, error) {
	about, err := from.Stat()
	if err != nil {
		return nil, err
	}
	// The context lies in memory of C, as cgo forbids pointers to memory of Go that stay.
	handle := (*cgo.Handle)(C.malloc(C.size_t(unsafe.Sizeof(cgo.Handle(0)))))
	*handle = cgo.NewHandle(from)
	var source C.safetensors_source
	C.set_functions(&source)
	source.context = unsafe.Pointer(handle)
	source.nbytes = C.uint64_t(about.Size())
	file := &File{}
	text, size := cText(label)
	return file, call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_open_source(&source, text, size, nil, &file.raw, e)
	})
}

//export goRead
func goRead(context unsafe.Pointer, offset C.uint64_t, to unsafe.Pointer, nbytes C.size_t,
	_ *C.safetensors_error) (count C.int64_t) {
	defer func() { // a panic must not leave a callback
		if recover() != nil {
			count = -1
		}
	}()
	from := (*(*cgo.Handle)(context)).Value().(*os.File)
	read, err := from.ReadAt(unsafe.Slice((*byte)(to), int(nbytes)), int64(offset))
	if err != nil && err != io.EOF {
		return -1
	}
	return C.int64_t(read)
}

//export goRelease
func goRelease(context unsafe.Pointer) {
	handle := (*cgo.Handle)(context)
	_ = handle.Value().(*os.File).Close()
	handle.Delete()
	C.free(context)
}

// Close frees the file and all that its tensors point to.
func (f *File) Close() { C.safetensors_close(f.raw) }

// At returns a tensor by its number.
func (f *File) At(index int) (tensor C.safetensors_tensor, err error) {
	err = call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_at(f.raw, C.size_t(index), &tensor, e)
	})
	return
}

// Find returns a tensor by its name.
func (f *File) Find(name string) (tensor C.safetensors_tensor, err error) {
	text, size := cText(name)
	err = call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_find(f.raw, text, size, &tensor, e)
	})
	return
}

// Floats reads count elements, those that the indices select, as floats.
func (f *File) Floats(tensor C.safetensors_tensor, indices []C.safetensors_index, count int) ([]float32, error) {
	// A request holds pointers, so what they lead to lies in memory of C.
	room := C.size_t(4 * count)
	memory := C.malloc(room)
	defer C.free(memory)
	raw := (*C.safetensors_tensor)(C.malloc(C.size_t(unsafe.Sizeof(tensor))))
	defer C.free(unsafe.Pointer(raw))
	*raw = tensor
	request := C.safetensors_request{tensor: raw, to: memory, room: C.uint64_t(room), dtype: C.SAFETENSORS_F32}
	if len(indices) != 0 {
		nbytes := C.size_t(len(indices)) * C.size_t(unsafe.Sizeof(indices[0]))
		request.indices = (*C.safetensors_index)(C.malloc(nbytes))
		defer C.free(unsafe.Pointer(request.indices))
		copy(unsafe.Slice(request.indices, len(indices)), indices)
		request.index_count = C.size_t(len(indices))
	}
	err := call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_read(f.raw, &request, 1, nil, e)
	})
	return append([]float32(nil), unsafe.Slice((*float32)(memory), count)...), err
}

// Write writes a file of one tensor of floats.
func Write(path, name string, shape []uint64, values []float32) error {
	cName := C.CString(name)
	defer C.free(unsafe.Pointer(cName))
	cShape := (*C.uint64_t)(C.malloc(C.size_t(8 * len(shape))))
	defer C.free(unsafe.Pointer(cShape))
	for i, size := range shape {
		unsafe.Slice(cShape, len(shape))[i] = C.uint64_t(size)
	}
	spec := C.safetensors_tensor{name: cName, name_size: C.size_t(len(name)), shape: cShape,
		rank: C.size_t(len(shape)), dtype: C.SAFETENSORS_F32}
	var writer *C.safetensors_writer
	text, size := cText(path)
	err := call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_writer_create(text, size, &spec, 1, nil, &writer, e)
	})
	if err != nil {
		return err
	}
	defer C.safetensors_writer_free(writer) // without a commit, removes what was written
	err = call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_writer_write(writer, cName, C.size_t(len(name)), 0,
			unsafe.Pointer(&values[0]), C.uint64_t(4*len(values)), e)
	})
	if err != nil {
		return err
	}
	return call(func(e *C.safetensors_error) C.int32_t { return C.safetensors_writer_commit(writer, e) })
}

// Weights is a model as named weights.
type Weights struct{ raw *C.safetensors_weights }

// OpenWeights opens a model of MLX, Hugging Face or GGUF.
func OpenWeights(path string) (*Weights, error) {
	weights := &Weights{}
	text, size := cText(path)
	return weights, call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_weights_open(text, size, nil, &weights.raw, e)
	})
}

// Close frees the model.
func (w *Weights) Close() { C.safetensors_weights_close(w.raw) }

// Find describes a weight.
func (w *Weights) Find(name string) (weight C.safetensors_weight, err error) {
	text, size := cText(name)
	err = call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_weights_find(w.raw, text, size, &weight, e)
	})
	return
}

// Config returns a field of the configuration.
func (w *Weights) Config(field string) (value C.safetensors_value, err error) {
	text, size := cText(field)
	err = call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_weights_config(w.raw, text, size, &value, e)
	})
	return
}

// Row decodes one row.
func (w *Weights) Row(name string, row int64, columns int) ([]float32, error) {
	values := make([]float32, columns)
	text, size := cText(name)
	return values, call(func(e *C.safetensors_error) C.int32_t {
		return C.safetensors_weights_decode(w.raw, text, size, C.int64_t(row), 1, C.SAFETENSORS_F32,
			unsafe.Pointer(&values[0]), C.uint64_t(4*columns), nil, e)
	})
}

func show(what string, values []float32) {
	words := make([]string, len(values))
	for i, value := range values {
		words[i] = fmt.Sprintf("%08x", math.Float32bits(value))
	}
	fmt.Println(what, strings.Join(words, " "))
}

// must ends the program with an error.
func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: main MODEL TENSOR QUANTISED WEIGHT FILE")
		os.Exit(2)
	}
	model, name, quantised, weight, path := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	file := must(Open(model))
	defer file.Close()
	for i := 0; i < int(C.safetensors_count(file.raw)); i++ {
		tensor := must(file.At(i))
		sizes := make([]string, tensor.rank)
		for axis, size := range unsafe.Slice(tensor.shape, tensor.rank) {
			sizes[axis] = fmt.Sprint(size)
		}
		fmt.Printf("tensor %s %s [%s]\n", goText(tensor.name, tensor.name_size),
			C.GoString(C.safetensors_dtype_name(tensor.dtype)), strings.Join(sizes, ", "))
	}
	// Every second of the first four rows, and columns 1 to 3.
	part := []C.safetensors_index{{kind: C.SAFETENSORS_RANGE, stop: 4, step: 2},
		{kind: C.SAFETENSORS_RANGE, start: 1, stop: 4, step: 1}}
	values := must(file.Floats(must(file.Find(name)), part, 6))
	show("slice", values)
	must(0, Write(path, "slice", []uint64{2, 3}, values))
	streamed := must(Stream(must(os.Open(path)), "stream"))
	defer streamed.Close()
	show("streamed", must(streamed.Floats(must(streamed.Find("slice")), nil, 6)))
	if _, err := file.Find("no such tensor"); err != nil {
		fmt.Println("missing", err.(*Error).Code)
	}
	weights := must(OpenWeights(quantised))
	defer weights.Close()
	architecture := must(weights.Config("architecture"))
	layers := must(weights.Config("n_layers"))
	fmt.Println("model", goText(architecture.string, architecture.string_size), layers.integer)
	found := must(weights.Find(weight))
	fmt.Println("weight", goText(found.type_name, found.type_name_size), found.part_count)
	columns := unsafe.Slice(found.shape, found.rank)[found.rank-1]
	show("row", must(weights.Row(weight, 1, int(columns))))
}
