package graphkit

import (
	"fmt"
	"unsafe"
)

type element interface {
	float32 | float64 | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// The conversions between bytes and slices, by type.
var conversions = map[string]struct {
	write func(elements any, to []byte) bool
	read  func(from []byte) any
}{
	"float32":  {toBytes[float32], fromBytes[float32]},
	"float64":  {toBytes[float64], fromBytes[float64]},
	"float16":  {toBytes[uint16], fromBytes[uint16]},
	"bfloat16": {toBytes[uint16], fromBytes[uint16]},
	"int8":     {toBytes[int8], fromBytes[int8]},
	"int16":    {toBytes[int16], fromBytes[int16]},
	"int32":    {toBytes[int32], fromBytes[int32]},
	"int64":    {toBytes[int64], fromBytes[int64]},
	"uint8":    {toBytes[uint8], fromBytes[uint8]},
	"uint16":   {toBytes[uint16], fromBytes[uint16]},
	"uint32":   {toBytes[uint32], fromBytes[uint32]},
	"uint64":   {toBytes[uint64], fromBytes[uint64]},
	"bool":     {toBytes[uint8], fromBytes[uint8]},
}

func write(port Port, elements any, to []byte) error {
	if !conversions[port.Type].write(elements, to) {
		return fmt.Errorf("input '%s' must be %s %v, got another type or number of elements (%T)",
			port.Name, port.Type, port.Shape, elements)
	}
	return nil
}

func read(port Port, from []byte) any { return conversions[port.Type].read(from) }

// Make returns zeros for an input.
func (p Port) Make() any { return conversions[p.Type].read(make([]byte, p.Bytes)) }

func toBytes[T element](elements any, to []byte) bool {
	from, ok := elements.([]T)
	var zero T
	if !ok || len(from)*int(unsafe.Sizeof(zero)) != len(to) {
		return false
	}
	copy(to, bytesOf(from))
	return true
}

func fromBytes[T element](from []byte) any {
	var zero T
	made := make([]T, len(from)/int(unsafe.Sizeof(zero)))
	copy(bytesOf(made), from)
	return made
}

func bytesOf[T element](elements []T) []byte {
	if len(elements) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&elements[0])), len(elements)*int(unsafe.Sizeof(elements[0])))
}
