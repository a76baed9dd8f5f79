// Runs a program that graphkit saved: node run.js PROGRAM.gkp [INPUT.bin ...]
//
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

async function main([path, ...files]) {
  if (path === undefined) {
    console.error('usage: node run.js PROGRAM.gkp [INPUT.bin ...]');
    return 2;
  }
  const program = new Program(path);
  if (files.length > 0 && files.length !== program.inputs.length) {
    throw new Error(`the program has ${program.inputs.length} inputs, but ${files.length} files were given`);
  }
  const inputs = program.inputs.map((port, i) => {
    describe('input', port);
    return files.length > 0 ? readFile(files[i], port) : generated(port);
  });
  const outputs = await program.run(inputs);
  program.outputs.forEach((port, i) => {
    describe('output', port);
    console.log(Array.from(outputs[i], String).join('\n'));
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
