// Runs a program that graphkit saved: run PROGRAM.gkp [INPUT.bin ...]
//
// Each file contains the elements of one input. Without files, inputs are generated. Prints inputs and outputs.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"example/run/graphkit"
)

func readFile(path string, port graphkit.Port) (any, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(data) != port.Bytes {
		return nil, fmt.Errorf("%s does not contain %d bytes", path, port.Bytes)
	}
	elements := port.Make()
	return elements, binary.Read(bytes.NewReader(data), binary.LittleEndian, elements)
}

// Floating-point numbers from -1 to 0.875, integers that are 0 or 1.
func generated(port graphkit.Port) (any, error) {
	elements := port.Make()
	switch elements := elements.(type) {
	case []float32:
		for k := range elements {
			elements[k] = float32(k%16)/8 - 1
		}
	case []int64:
		for k := range elements {
			elements[k] = int64(k % 2)
		}
	default:
		return nil, fmt.Errorf("inputs are generated for float32 and int64 only: give files")
	}
	return elements, nil
}

func describe(out *bufio.Writer, kind string, port graphkit.Port) {
	shape := strings.Join(strings.Fields(fmt.Sprint(port.Shape)), ", ")
	fmt.Fprintln(out, kind, port.Name, port.Type, shape)
}

func print[T any](out *bufio.Writer, elements []T) {
	for _, element := range elements {
		fmt.Fprintln(out, element)
	}
}

func run(path string, files []string) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	program, err := graphkit.Open(path, 0)
	if err != nil {
		return err
	}
	defer program.Close()
	if len(files) != 0 && len(files) != len(program.Inputs) {
		return fmt.Errorf("the program has %d inputs, but %d files were given", len(program.Inputs), len(files))
	}
	inputs := make([]any, len(program.Inputs))
	for i, port := range program.Inputs {
		describe(out, "input", port)
		if len(files) == 0 {
			inputs[i], err = generated(port)
		} else {
			inputs[i], err = readFile(files[i], port)
		}
		if err != nil {
			return err
		}
	}
	outputs, err := program.Run(inputs...)
	if err != nil {
		return err
	}
	for i, port := range program.Outputs {
		describe(out, "output", port)
		switch elements := outputs[i].(type) {
		case []float32:
			print(out, elements)
		case []int64:
			print(out, elements)
		default:
			fmt.Fprintf(out, "(%d bytes)\n", port.Bytes)
		}
	}
	return nil
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: run PROGRAM.gkp [INPUT.bin ...]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
