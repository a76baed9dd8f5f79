// Runs a program that graphkit saved: node run.js [--rows N] [--cache FOLDER] PROGRAM [INPUT.bin ...]
//
// With --rows, it runs a batch of N rows, which the programs of the file compute in parts. The program is a .gkp file, or
// a .onnx or .json file, which the command graphkit converts. With --cache, the folder keeps converted programs.
// Each file contains the elements of one input. Without files, inputs are generated. Prints inputs and outputs.
'use strict';

const fs = require('fs');
const {Program} = require('./graphkit.node');

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bfloat16: Uint16Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array, bool: Uint8Array,
};

function readFile(path, {type, length}) {
  const bytes = new Uint8Array(fs.readFileSync(path)); // a copy, which is aligned
  const array = ARRAYS[type];
  if (bytes.length !== length * array.BYTES_PER_ELEMENT) {
    throw new Error(`${path} does not contain ${length} elements of ${type}`);
  }
  return new array(bytes.buffer);
}

// Floating-point numbers from -1 to 0.875, integers that are 0 or 1.
function generated({type, length}) {
  if (type === 'float32') {
    return Float32Array.from({length}, (_, k) => (k % 16) / 8 - 1);
  }
  if (type === 'int64') {
    return BigInt64Array.from({length}, (_, k) => BigInt(k % 2));
  }
  throw new Error('inputs are generated for float32 and int64 only: give files');
}

function describe(kind, {name, type, shape}) {
  console.log(`${kind} ${name} ${type} [${shape.join(', ')}]`);
}

// The port for another number of rows; the same one if it has no batch axis.
function withRows(port, rows) {
  if (port.batchAxis < 0) {
    return port;
  }
  const shape = port.shape.map((size, axis) => (axis === port.batchAxis ? rows : size));
  return {...port, shape, length: shape.reduce((product, size) => product * size, 1)};
}

async function main(given) {
  const rows = given.length > 1 && given[0] === '--rows' ? Number(given[1]) : undefined;
  const rest = given.slice(rows === undefined ? 0 : 2);
  const cacheFolder = rest.length > 1 && rest[0] === '--cache' ? rest[1] : undefined;
  const [path, ...files] = rest.slice(cacheFolder === undefined ? 0 : 2);
  if (path === undefined || (rows !== undefined && !(Number.isInteger(rows) && rows >= 0))) {
    console.error('usage: node run.js [--rows N] [--cache FOLDER] PROGRAM [INPUT.bin ...]');
    return 2;
  }
  const program = new Program(path, {cacheFolder});
  if (files.length > 0 && files.length !== program.inputs.length) {
    throw new Error(`the program has ${program.inputs.length} inputs, but ${files.length} files were given`);
  }
  const ports = program.inputs.map((port) => (rows === undefined ? port : withRows(port, rows)));
  const inputs = ports.map((port, i) => {
    describe('input', port);
    return files.length > 0 ? readFile(files[i], port) : generated(port);
  });
  const shapes = ports.map(({shape}) => shape);
  const outputs = rows === undefined ? await program.find(shapes).run(inputs) : await program.run(inputs, shapes);
  program.outputs.forEach(({name, type}, i) => {
    describe('output', {name, type, shape: outputs[i].shape});
    if (outputs[i].length > 0) {
      console.log(Array.from(outputs[i], String).join('\n'));
    }
  });
  return 0;
}

main(process.argv.slice(2)).then(
  (code) => { process.exitCode = code; },
  (error) => {
    console.error(error.code ? `${error.code}: ${error.message}` : error.message);
    process.exitCode = 1;
  },
);
