// Package graphkit runs programs that graphkit saved (.gkp files). It wraps graphkit.h.
package graphkit

/*
#cgo pkg-config: graphkit
#include <graphkit.h>
#include <stdlib.h>
#include <string.h>

// A goroutine may move to another thread between two calls, and each thread has its own error text. So each of these
// functions calls graphkit and copies the text, which the caller frees.
static gk_status opened(const char* path, int32_t threads, gk_session** session, char** text) {
    const gk_options options = {.threads = threads};
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
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
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
}

// Program is ready to run. Goroutines may use it at the same time.
type Program struct {
	Inputs, Outputs []Port

	mutex   sync.RWMutex // Close waits for runs
	session *C.gk_session
}

// Open opens a program. threads is the largest number of threads of a run; 0 means that of the export, and at most one
// for each core.
func Open(path string, threads int) (*Program, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var session *C.gk_session
	var text *C.char
	if status := C.opened(name, C.int32_t(threads), &session, &text); status != C.GK_OK {
		return nil, failed(status, text)
	}
	p := &Program{session: session}
	for i := C.size_t(0); i < C.gk_input_count(session); i++ {
		p.Inputs = append(p.Inputs, port(C.gk_input_name(session, i), C.gk_input_type(session, i),
			C.gk_input_dims(session, i), C.gk_input_rank(session, i), C.gk_input_bytes(session, i)))
	}
	for i := C.size_t(0); i < C.gk_output_count(session); i++ {
		p.Outputs = append(p.Outputs, port(C.gk_output_name(session, i), C.gk_output_type(session, i),
			C.gk_output_dims(session, i), C.gk_output_rank(session, i), C.gk_output_bytes(session, i)))
	}
	runtime.SetFinalizer(p, (*Program).Close)
	return p, nil
}

// Close waits for the runs of other goroutines, and frees the program.
func (p *Program) Close() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	C.gk_close(p.session)
	p.session = nil
}

// Run runs the program. inputs contains the elements of each input, row-major: []float32, []int64, ... as the types of
// the ports say. Elements of float16 and bfloat16 are their bits, uint16. Elements of bool are 0 or 1, uint8. The
// outputs have the same form.
func (p *Program) Run(inputs ...any) ([]any, error) {
	p.mutex.RLock()
	defer p.mutex.RUnlock()
	if p.session == nil {
		return nil, ErrClosed
	}
	if len(inputs) != len(p.Inputs) {
		return nil, fmt.Errorf("the program has %d inputs, but %d were given", len(p.Inputs), len(inputs))
	}
	// C memory: C code must not keep pointers to Go's memory in an array.
	given, made := allocate(p.Inputs), allocate(p.Outputs)
	defer given.free()
	defer made.free()
	for i, input := range inputs {
		if err := write(p.Inputs[i], input, given.bytes(i)); err != nil {
			return nil, err
		}
	}
	var text *C.char
	status := C.ran(p.session, given.start, C.size_t(len(p.Inputs)), made.start, C.size_t(len(p.Outputs)), &text)
	if status != C.GK_OK {
		return nil, failed(status, text)
	}
	outputs := make([]any, len(p.Outputs))
	for i, port := range p.Outputs {
		outputs[i] = read(port, made.bytes(i))
	}
	return outputs, nil
}

func failed(status C.gk_status, text *C.char) error {
	defer C.free(unsafe.Pointer(text))
	return &Error{C.GoString(C.gk_status_name(status)), C.GoString(text)}
}

func port(name *C.char, kind C.gk_type, dims *C.int64_t, rank, bytes C.size_t) Port {
	shape := append([]int64{}, unsafe.Slice((*int64)(dims), int(rank))...)
	return Port{C.GoString(name), C.GoString(C.gk_type_name(kind)), shape, int(bytes)}
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
