// Runs a program that graphkit saved: run [--rows N] [--cache FOLDER] PROGRAM [INPUT.bin ...]
//
// With --rows, it runs a batch of N rows, which the programs of the file compute in parts. The program is a .gkp file, or
// a .onnx or .json file, which the command graphkit converts. With --cache, the folder keeps converted programs.
// Each file contains the elements of one input. Without files, inputs are generated. Prints inputs and outputs.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
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

// rows: of a batch; negative: the sizes of the first program.
func run(path string, files []string, rows int64, options graphkit.Options) error {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	program, err := graphkit.Open(path, options)
	if err != nil {
		return err
	}
	defer program.Close()
	if len(files) != 0 && len(files) != len(program.Inputs) {
		return fmt.Errorf("the program has %d inputs, but %d files were given", len(program.Inputs), len(files))
	}
	inputs, shapes := make([]any, len(program.Inputs)), make([][]int64, len(program.Inputs))
	for i, port := range program.Inputs {
		if rows >= 0 {
			port = port.WithRows(rows)
		}
		shapes[i] = port.Shape
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
	outputs, made, err := program.RunShapes(inputs, shapes)
	if err != nil {
		return err
	}
	for i, port := range program.Outputs {
		port = port.WithShape(made[i])
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
	arguments, rows := os.Args[1:], int64(-1)
	var options graphkit.Options
	var err error
	if len(arguments) > 1 && arguments[0] == "--rows" {
		rows, err = strconv.ParseInt(arguments[1], 10, 63)
		arguments = arguments[2:]
	}
	if len(arguments) > 1 && arguments[0] == "--cache" {
		options.CacheFolder = arguments[1]
		arguments = arguments[2:]
	}
	if len(arguments) < 1 || err != nil {
		fmt.Fprintln(os.Stderr, "usage: run [--rows N] [--cache FOLDER] PROGRAM [INPUT.bin ...]")
		os.Exit(2)
	}
	if err := run(arguments[0], arguments[1:], rows, options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
