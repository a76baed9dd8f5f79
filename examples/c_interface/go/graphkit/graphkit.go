// Package graphkit runs programs that graphkit saved (.gkp files), and other networks after a conversion. It wraps
// graphkit.h.
package graphkit

/*
#cgo pkg-config: graphkit
#include <graphkit.h>
#include <stdlib.h>
#include <string.h>

// A goroutine may move to another thread between two calls, and each thread has its own error text. So each of these
// functions calls graphkit and copies the text, which the caller frees.
static gk_status opened(const char* path, gk_options options, gk_session** session, char** text) {
    const gk_status status = gk_open(path, &options, session);
    *text = status == GK_OK ? NULL : strdup(gk_error());
    return status;
}

static gk_status ran(gk_session* session, void** inputs, size_t input_count, void** outputs, size_t output_count,
                     char** text) {
    const gk_status status = gk_run(session, (const void* const*)inputs, input_count, outputs, output_count);
    *text = status == GK_OK ? NULL : strdup(gk_error());
    return status;
}

// Returns pointers to the sizes of each input, which follow each other in `sizes`. NULL: no memory.
static const int64_t** dims_of(gk_session* session, const int64_t* sizes) {
    const size_t count = gk_input_count(session);
    const int64_t** dims = malloc((count + 1) * sizeof *dims);
    for (size_t i = 0; dims != NULL && i < count; ++i) {
        dims[i] = sizes;
        sizes += gk_input_rank(session, i);
    }
    return dims;
}

static gk_status found(gk_session* session, const int64_t* sizes, gk_session** program, char** text) {
    const int64_t** dims = dims_of(session, sizes);
    const gk_status status = gk_find_program(session, dims, gk_input_count(session), program);
    *text = status == GK_OK ? NULL : strdup(gk_error());
    free(dims);
    return status;
}

static gk_status found_dims(gk_session* session, const int64_t* sizes, size_t output, int64_t* output_sizes,
                            char** text) {
    const int64_t** dims = dims_of(session, sizes);
    const gk_status status = gk_find_output_dims(session, dims, gk_input_count(session), output, output_sizes);
    *text = status == GK_OK ? NULL : strdup(gk_error());
    free(dims);
    return status;
}

static gk_status ran_shapes(gk_session* session, void** inputs, const int64_t* sizes, void** outputs, char** text) {
    const int64_t** dims = dims_of(session, sizes);
    const gk_status status = gk_run_shapes(session, (const void* const*)inputs, dims, gk_input_count(session), outputs,
                                           gk_output_count(session));
    *text = status == GK_OK ? NULL : strdup(gk_error());
    free(dims);
    return status;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Error is an error of the library.
type Error struct {
	Status string // such as "GK_ERROR_FILE"
	Text   string
}

func (e *Error) Error() string { return e.Text }

// ErrClosed is returned by Run after Close.
var ErrClosed = errors.New("the program is closed")

// Port describes an input or an output.
type Port struct {
	Name  string
	Type  string // such as "float32"
	Shape []int64
	Bytes int
	// BatchAxis is the axis that has the rows of a batch, if rows are independent; -1: none.
	BatchAxis int

	kind C.gk_type
}

// WithShape returns the port for another shape.
func (p Port) WithShape(shape []int64) Port {
	p.Bytes = int(C.gk_type_size(p.kind))
	for _, size := range shape {
		p.Bytes *= int(size)
	}
	p.Shape = shape
	return p
}

// WithRows returns the port for another number of rows; the same one if it has no batch axis.
func (p Port) WithRows(rows int64) Port {
	shape := append([]int64{}, p.Shape...)
	if p.BatchAxis >= 0 {
		shape[p.BatchAxis] = rows
	}
	return p.WithShape(shape)
}

// Program is ready to run. Goroutines may use it at the same time.
type Program struct {
	Inputs, Outputs []Port

	file    *file
	session *C.gk_session
}

// An open file. All of its programs hold it.
type file struct {
	mutex   sync.RWMutex  // Close waits for runs
	session *C.gk_session // nil after Close
}

func (f *file) close() {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	C.gk_close(f.session)
	f.session = nil
}

// Options limits runs, and says how networks that are not saved programs are converted. Zero means no limit, or what
// graphkit.h says.
type Options struct {
	Threads       int   // of a run; 0: those of the export, at most one for each core
	MaxIterations int64 // of one loop
	Timeout       time.Duration

	// Converter is the command graphkit. "": GRAPHKIT_CONVERTER, or graphkit on PATH.
	Converter string
	// NoConverter forbids to start a process.
	NoConverter bool
	// ConverterArguments are more arguments of graphkit export, such as "x:1,64".
	ConverterArguments []string
	// ConvertTimeout limits a conversion.
	ConvertTimeout time.Duration
	// CacheFolder keeps converted programs. "": they are not kept.
	CacheFolder string
	// CacheBytes limits the programs in CacheFolder together. 0: 8 GiB. -1: any number.
	CacheBytes int64
}

// Texts in C memory.
type texts []unsafe.Pointer

func (t *texts) add(text string) (*C.char, error) {
	if strings.IndexByte(text, 0) >= 0 {
		return nil, &Error{C.GoString(C.gk_status_name(C.GK_ERROR_ARGUMENT)), fmt.Sprintf("%q contains a zero byte", text)}
	}
	made := C.CString(text)
	*t = append(*t, unsafe.Pointer(made))
	return made, nil
}

// Adds texts, and a list of them that ends with a null pointer.
func (t *texts) list(given []string) (**C.char, error) {
	memory := C.calloc(C.size_t(len(given)+1), C.size_t(unsafe.Sizeof(uintptr(0))))
	*t = append(*t, memory)
	made := unsafe.Slice((**C.char)(memory), len(given)+1)
	for i, text := range given {
		var err error
		if made[i], err = t.add(text); err != nil {
			return nil, err
		}
	}
	return &made[0], nil
}

func (t *texts) free() {
	for _, each := range *t {
		C.free(each)
	}
}

// Returns options with texts in C memory.
func (t *texts) options(given Options) (made C.gk_options, err error) {
	made.threads = C.int32_t(given.Threads)
	made.max_iterations = C.int64_t(given.MaxIterations)
	made.timeout = C.double(given.Timeout.Seconds())
	made.convert_timeout = C.double(given.ConvertTimeout.Seconds())
	made.cache_bytes = C.int64_t(given.CacheBytes)
	if given.NoConverter && given.Converter != "" {
		return made, &Error{C.GoString(C.gk_status_name(C.GK_ERROR_ARGUMENT)), "Converter and NoConverter are both set"}
	}
	if given.NoConverter || given.Converter != "" {
		if made.converter, err = t.add(given.Converter); err != nil {
			return made, err
		}
	}
	if made.cache_folder, err = t.add(given.CacheFolder); err != nil {
		return made, err
	}
	made.converter_arguments, err = t.list(given.ConverterArguments)
	return made, err
}

// Open opens a saved program, or a network that the converter writes as one.
func Open(path string, options Options) (*Program, error) {
	var memory texts
	defer memory.free()
	name, err := memory.add(path)
	if err != nil {
		return nil, err
	}
	given, err := memory.options(options)
	if err != nil {
		return nil, err
	}
	var session *C.gk_session
	var text *C.char
	if status := C.opened(name, given, &session, &text); status != C.GK_OK {
		return nil, failed(status, text)
	}
	opened := &file{session: session}
	runtime.SetFinalizer(opened, (*file).close)
	return programOf(opened, session), nil
}

func programOf(opened *file, session *C.gk_session) *Program {
	p := &Program{file: opened, session: session}
	for i := C.size_t(0); i < C.gk_input_count(session); i++ {
		p.Inputs = append(p.Inputs, port(C.gk_input_name(session, i), C.gk_input_type(session, i),
			C.gk_input_dims(session, i), C.gk_input_rank(session, i), C.gk_input_bytes(session, i),
			C.gk_input_batch_axis(session, i)))
	}
	for i := C.size_t(0); i < C.gk_output_count(session); i++ {
		p.Outputs = append(p.Outputs, port(C.gk_output_name(session, i), C.gk_output_type(session, i),
			C.gk_output_dims(session, i), C.gk_output_rank(session, i), C.gk_output_bytes(session, i),
			C.gk_output_batch_axis(session, i)))
	}
	return p
}

// Close waits for the runs of other goroutines, and frees all programs of the file.
func (p *Program) Close() { p.file.close() }

// Find returns the program of the same file for inputs of these shapes.
func (p *Program) Find(shapes ...[]int64) (*Program, error) {
	p.file.mutex.RLock()
	defer p.file.mutex.RUnlock()
	sizes, err := p.sizes(shapes)
	if err != nil {
		return nil, err
	}
	var session *C.gk_session
	var text *C.char
	if status := C.found(p.session, &sizes[0], &session, &text); status != C.GK_OK {
		return nil, failed(status, text)
	}
	return programOf(p.file, session), nil
}

// The sizes of all shapes, one after another, and one more so that there is a first one.
func (p *Program) sizes(shapes [][]int64) ([]C.int64_t, error) {
	if p.file.session == nil {
		return nil, ErrClosed
	}
	if len(shapes) != len(p.Inputs) {
		return nil, fmt.Errorf("the program has %d inputs, but %d shapes were given", len(p.Inputs), len(shapes))
	}
	sizes := []C.int64_t{}
	for i, shape := range shapes {
		if len(shape) != len(p.Inputs[i].Shape) {
			return nil, fmt.Errorf("the shape of input '%s' has another rank", p.Inputs[i].Name)
		}
		for _, size := range shape {
			sizes = append(sizes, C.int64_t(size))
		}
	}
	return append(sizes, 0), nil
}

// RunShapes runs inputs of these shapes. If rows are independent, a batch may have any size. It returns the elements of
// each output, see Run, and its shape.
func (p *Program) RunShapes(inputs []any, shapes [][]int64) ([]any, [][]int64, error) {
	p.file.mutex.RLock()
	defer p.file.mutex.RUnlock()
	sizes, err := p.sizes(shapes)
	if err != nil {
		return nil, nil, err
	}
	var text *C.char
	outputs := make([]Port, len(p.Outputs))
	made := make([][]int64, len(p.Outputs))
	for i, port := range p.Outputs {
		found := make([]C.int64_t, len(port.Shape)+1)
		if status := C.found_dims(p.session, &sizes[0], C.size_t(i), &found[0], &text); status != C.GK_OK {
			return nil, nil, failed(status, text)
		}
		made[i] = append([]int64{}, unsafe.Slice((*int64)(&found[0]), len(port.Shape))...)
		outputs[i] = port.WithShape(made[i])
	}
	given := make([]Port, len(p.Inputs)) // the library has accepted the shapes, so no size is negative
	for i, port := range p.Inputs {
		given[i] = port.WithShape(shapes[i])
	}
	results, err := p.run(given, outputs, inputs, func(from, to arrays) error {
		if status := C.ran_shapes(p.session, from.start, &sizes[0], to.start, &text); status != C.GK_OK {
			return failed(status, text)
		}
		return nil
	})
	return results, made, err
}

// Run runs the program. inputs contains the elements of each input, row-major: []float32, []int64, ... as the types of
// the ports say. Elements of float16 and bfloat16 are their bits, uint16. Elements of bool are 0 or 1, uint8. The
// outputs have the same form.
func (p *Program) Run(inputs ...any) ([]any, error) {
	p.file.mutex.RLock()
	defer p.file.mutex.RUnlock()
	if p.file.session == nil {
		return nil, ErrClosed
	}
	return p.run(p.Inputs, p.Outputs, inputs, func(from, to arrays) error {
		var text *C.char
		status := C.ran(p.session, from.start, C.size_t(len(p.Inputs)), to.start, C.size_t(len(p.Outputs)), &text)
		if status != C.GK_OK {
			return failed(status, text)
		}
		return nil
	})
}

// Copies inputs to C memory, calls a function, and copies the outputs. C code must not keep pointers to Go's memory in
// an array.
func (p *Program) run(given, made []Port, inputs []any, call func(from, to arrays) error) ([]any, error) {
	if len(inputs) != len(given) {
		return nil, fmt.Errorf("the program has %d inputs, but %d were given", len(given), len(inputs))
	}
	from, to := allocate(given), allocate(made)
	defer from.free()
	defer to.free()
	for i, input := range inputs {
		if err := write(given[i], input, from.bytes(i)); err != nil {
			return nil, err
		}
	}
	if err := call(from, to); err != nil {
		return nil, err
	}
	outputs := make([]any, len(made))
	for i, port := range made {
		outputs[i] = read(port, to.bytes(i))
	}
	return outputs, nil
}

func failed(status C.gk_status, text *C.char) error {
	defer C.free(unsafe.Pointer(text))
	return &Error{C.GoString(C.gk_status_name(status)), C.GoString(text)}
}

func port(name *C.char, kind C.gk_type, dims *C.int64_t, rank, bytes C.size_t, axis C.int32_t) Port {
	shape := append([]int64{}, unsafe.Slice((*int64)(dims), int(rank))...)
	return Port{C.GoString(name), C.GoString(C.gk_type_name(kind)), shape, int(bytes), int(axis), kind}
}

// Arrays in C memory.
type arrays struct {
	ports []Port
	start *unsafe.Pointer
}

func allocate(ports []Port) arrays {
	made := arrays{ports, (*unsafe.Pointer)(C.malloc(C.size_t(len(ports)+1) * C.size_t(unsafe.Sizeof(uintptr(0)))))}
	for i, port := range ports {
		made.pointers()[i] = C.malloc(C.size_t(port.Bytes + 1))
	}
	return made
}

func (a arrays) pointers() []unsafe.Pointer { return unsafe.Slice(a.start, len(a.ports)) }

func (a arrays) bytes(i int) []byte { return unsafe.Slice((*byte)(a.pointers()[i]), a.ports[i].Bytes) }

func (a arrays) free() {
	for _, pointer := range a.pointers() {
		C.free(pointer)
	}
	C.free(unsafe.Pointer(a.start))
}
