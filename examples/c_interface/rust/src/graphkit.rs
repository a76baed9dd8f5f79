//! A safe wrapper of graphkit.h.

use std::ffi::{c_char, c_uint, c_void, CStr, CString};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;

mod c {
    use super::{c_char, c_uint, c_void};

    pub const ABI_VERSION: u32 = 1;

    #[repr(C)]
    pub struct Session {
        _private: [u8; 0],
    }

    #[repr(C)]
    pub struct Options {
        pub threads: i32,
        pub max_iterations: i64,
        pub timeout: f64,
    }

    extern "C" {
        pub fn gk_error() -> *const c_char;
        pub fn gk_open_checked(
            path: *const c_char,
            options: *const Options,
            session: *mut *mut Session,
            abi_version: u32,
            options_size: usize,
        ) -> c_uint;
        pub fn gk_close(session: *mut Session);
        pub fn gk_input_count(session: *const Session) -> usize;
        pub fn gk_input_name(session: *const Session, input: usize) -> *const c_char;
        pub fn gk_input_type(session: *const Session, input: usize) -> c_uint;
        pub fn gk_input_rank(session: *const Session, input: usize) -> usize;
        pub fn gk_input_dims(session: *const Session, input: usize) -> *const i64;
        pub fn gk_output_count(session: *const Session) -> usize;
        pub fn gk_output_name(session: *const Session, output: usize) -> *const c_char;
        pub fn gk_output_type(session: *const Session, output: usize) -> c_uint;
        pub fn gk_output_rank(session: *const Session, output: usize) -> usize;
        pub fn gk_output_dims(session: *const Session, output: usize) -> *const i64;
        pub fn gk_run(
            session: *mut Session,
            inputs: *const *const c_void,
            input_count: usize,
            outputs: *const *mut c_void,
            output_count: usize,
        ) -> c_uint;
    }
}

/// What went wrong. The texts are those of `gk_error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    Argument(String),
    File(String),
    Format(String),
    Version(String),
    Processor(String),
    Memory(String),
    Run(String),
    Internal(String),
    Library(String),
}

impl Error {
    /// The latest error of this thread, which is that of the call that returned `status`.
    fn of(status: c_uint) -> Error {
        // SAFETY: gk_error returns a text that is valid until the next error of this thread.
        let text = unsafe { CStr::from_ptr(c::gk_error()) }.to_string_lossy().into_owned();
        match status {
            1 => Error::Argument(text),
            2 => Error::File(text),
            3 => Error::Format(text),
            4 => Error::Version(text),
            5 => Error::Processor(text),
            6 => Error::Memory(text),
            7 => Error::Run(text),
            9 => Error::Library(text),
            _ => Error::Internal(text),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Argument(text) | Error::File(text) | Error::Format(text) | Error::Version(text)
            | Error::Processor(text) | Error::Memory(text) | Error::Run(text) | Error::Internal(text)
            | Error::Library(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

macro_rules! elements {
    ($($kind:ident = $number:literal, $name:literal, $rust:ty;)*) => {
        /// A type of elements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Type { $($kind = $number),* }

        impl Type {
            fn of(number: c_uint) -> Option<Type> {
                match number { $($number => Some(Type::$kind),)* _ => None }
            }

            pub fn name(self) -> &'static str {
                match self { $(Type::$kind => $name),* }
            }
        }

        /// The elements of an input or output, row-major.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Tensor { $($kind(Vec<$rust>)),* }

        impl Tensor {
            /// Zeros.
            pub fn zeros(kind: Type, len: usize) -> Tensor {
                match kind { $(Type::$kind => Tensor::$kind(vec![<$rust>::default(); len])),* }
            }

            /// Elements from their bytes in the order of this processor; None if their number does not fit.
            pub fn from_bytes(kind: Type, bytes: &[u8]) -> Option<Tensor> {
                match kind {
                    $(Type::$kind => {
                        let pieces = bytes.chunks_exact(std::mem::size_of::<$rust>());
                        if !pieces.remainder().is_empty() { return None; }
                        let number = |piece: &[u8]| piece.try_into().map(<$rust>::from_ne_bytes).ok();
                        pieces.map(number).collect::<Option<Vec<$rust>>>().map(Tensor::$kind)
                    })*
                }
            }

            pub fn kind(&self) -> Type {
                match self { $(Tensor::$kind(_) => Type::$kind),* }
            }

            pub fn len(&self) -> usize {
                match self { $(Tensor::$kind(values) => values.len()),* }
            }

            fn pointer(&self) -> *const c_void {
                match self { $(Tensor::$kind(values) => values.as_ptr().cast()),* }
            }

            fn pointer_mut(&mut self) -> *mut c_void {
                match self { $(Tensor::$kind(values) => values.as_mut_ptr().cast()),* }
            }
        }
    };
}

// Rust has no float16 and bfloat16: they are their bits. A bool is 0 or 1.
elements! {
    Float32 = 1, "float32", f32;
    Float64 = 2, "float64", f64;
    Float16 = 3, "float16", u16;
    Bfloat16 = 4, "bfloat16", u16;
    Int8 = 5, "int8", i8;
    Int16 = 6, "int16", i16;
    Int32 = 7, "int32", i32;
    Int64 = 8, "int64", i64;
    Uint8 = 9, "uint8", u8;
    Uint16 = 10, "uint16", u16;
    Uint32 = 11, "uint32", u32;
    Uint64 = 12, "uint64", u64;
    Bool = 13, "bool", u8;
}

/// Describes an input or an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub kind: Type,
    pub shape: Vec<i64>,
}

impl Port {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().map(|&size| size as usize).product()
    }

    /// SAFETY: `name` is a string, and `dims` has `rank` elements.
    unsafe fn new(name: *const c_char, kind: c_uint, dims: *const i64, rank: usize) -> Result<Port, Error> {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let kind = Type::of(kind).ok_or_else(|| Error::Version(format!("'{name}' has an unknown type: {kind}")))?;
        Ok(Port { name, kind, shape: std::slice::from_raw_parts(dims, rank).to_vec() })
    }
}

/// A program that is ready to run.
#[derive(Debug)]
pub struct Program {
    session: NonNull<c::Session>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

// SAFETY: threads may use one session at the same time, but for gk_close, which `drop` alone calls.
unsafe impl Send for Program {}
unsafe impl Sync for Program {}

impl Program {
    /// Opens a program. `threads`: most threads of a run; 0: those of the export, at most one for each core.
    pub fn open(path: impl AsRef<Path>, threads: i32) -> Result<Program, Error> {
        let path = path.as_ref().as_os_str().as_encoded_bytes();
        let path = CString::new(path).map_err(|_| Error::Argument("the path contains a zero byte".into()))?;
        let options = c::Options { threads, max_iterations: 0, timeout: 0.0 };
        let mut session = std::ptr::null_mut();
        // SAFETY: all pointers are valid during the call.
        let status = unsafe {
            c::gk_open_checked(path.as_ptr(), &options, &mut session, c::ABI_VERSION, std::mem::size_of::<c::Options>())
        };
        let session = NonNull::new(session).ok_or_else(|| Error::of(status))?;
        let mut program = Program { session, inputs: Vec::new(), outputs: Vec::new() };
        let session = session.as_ptr();
        // SAFETY: the session is open, and the numbers of inputs and outputs are below their counts.
        unsafe {
            for i in 0..c::gk_input_count(session) {
                let (dims, rank) = (c::gk_input_dims(session, i), c::gk_input_rank(session, i));
                let (name, kind) = (c::gk_input_name(session, i), c::gk_input_type(session, i));
                program.inputs.push(Port::new(name, kind, dims, rank)?);
            }
            for i in 0..c::gk_output_count(session) {
                let (dims, rank) = (c::gk_output_dims(session, i), c::gk_output_rank(session, i));
                let (name, kind) = (c::gk_output_name(session, i), c::gk_output_type(session, i));
                program.outputs.push(Port::new(name, kind, dims, rank)?);
            }
        }
        Ok(program)
    }

    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Runs the program. Inputs and outputs are in the order of `inputs()` and `outputs()`.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        for (tensor, port) in inputs.iter().zip(&self.inputs) {
            if tensor.kind() != port.kind || tensor.len() != port.len() {
                let expected = format!("{} elements of {}", port.len(), port.kind.name());
                return Err(Error::Argument(format!("input '{}' must have {expected}", port.name)));
            }
        }
        let mut outputs: Vec<Tensor> = self.outputs.iter().map(|port| Tensor::zeros(port.kind, port.len())).collect();
        let given: Vec<*const c_void> = inputs.iter().map(Tensor::pointer).collect();
        let made: Vec<*mut c_void> = outputs.iter_mut().map(Tensor::pointer_mut).collect();
        // SAFETY: types and sizes of all arrays are those of the program; gk_run checks the number of inputs.
        let status =
            unsafe { c::gk_run(self.session.as_ptr(), given.as_ptr(), given.len(), made.as_ptr(), made.len()) };
        if status == 0 {
            Ok(outputs)
        } else {
            Err(Error::of(status))
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: nothing else can use the session any more.
        unsafe { c::gk_close(self.session.as_ptr()) }
    }
}
