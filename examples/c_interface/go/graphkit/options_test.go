package graphkit

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// Writes a converter: a shell script. $6 is its output, and $7 its first further argument.
func script(t *testing.T, name, body string) string {
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustOpen(t *testing.T, path string, options Options) *Program {
	program, err := Open(path, options)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func mustFail(t *testing.T, path string, options Options, status string) {
	_, err := Open(path, options)
	var found *Error
	if !errors.As(err, &found) || found.Status != status {
		t.Errorf("%v instead of %s", err, status)
	}
}

// GRAPHKIT_PROGRAM=PROGRAM.gkp go test ./graphkit
func TestNetworksAreConverted(t *testing.T) {
	saved := os.Getenv("GRAPHKIT_PROGRAM")
	if saved == "" {
		t.Skip("set GRAPHKIT_PROGRAM to a program")
	}
	folder := t.TempDir()
	network, log, kept := filepath.Join(folder, "net.onnx"), filepath.Join(folder, "log"), filepath.Join(folder, "kept")
	if err := os.WriteFile(network, []byte("a network"), 0o600); err != nil {
		t.Fatal(err)
	}
	options := Options{
		Converter:          script(t, "copies", `echo "$7" >> "`+log+`"; cp "`+saved+`" "$6"`),
		ConverterArguments: []string{"x:1,64"},
		ConvertTimeout:     100 * time.Second,
		CacheFolder:        kept,
	}
	expected := mustOpen(t, saved, Options{})
	for i := 0; i < 2; i++ {
		if found := mustOpen(t, network, options); !reflect.DeepEqual(found.Inputs, expected.Inputs) {
			t.Error(found.Inputs)
		}
	}
	if arguments, err := os.ReadFile(log); err != nil || string(arguments) != "x:1,64\n" {
		t.Errorf("%q, %v", arguments, err)
	}
	options.CacheFolder, options.CacheBytes = filepath.Join(folder, "bounded"), 1
	mustOpen(t, network, options)
	if entries, err := os.ReadDir(options.CacheFolder); err != nil || len(entries) != 0 {
		t.Error(entries, err)
	}
	mustFail(t, network, Options{NoConverter: true}, "GK_ERROR_CONVERTER")
	mustFail(t, network, Options{NoConverter: true, Converter: "x"}, "GK_ERROR_ARGUMENT")
	mustFail(t, network, Options{Converter: "a\x00"}, "GK_ERROR_ARGUMENT")
	sleeps := Options{Converter: script(t, "sleeps", "sleep 100"), ConvertTimeout: 100 * time.Millisecond}
	mustFail(t, network, sleeps, "GK_ERROR_LIMIT")
}
