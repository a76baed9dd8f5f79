//! A safe wrapper of graphkit.h.

use std::ffi::{c_char, c_uint, c_void, CStr, CString, OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

mod c {
    use super::{c_char, c_uint, c_void};

    pub const ABI_VERSION: u32 = 1;

    #[repr(C)]
    pub struct Options {
        pub threads: i32,
        pub max_iterations: i64,
        pub timeout: f64,
        pub converter: *const c_char,
        pub converter_arguments: *const *const c_char,
        pub convert_timeout: f64,
        pub cache_folder: *const c_char,
        pub cache_bytes: i64,
    }

    #[repr(C)]
    pub struct Session {
        _private: [u8; 0],
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
        pub fn gk_input_batch_axis(session: *const Session, input: usize) -> i32;
        pub fn gk_output_batch_axis(session: *const Session, output: usize) -> i32;
        pub fn gk_find_program(
            session: *mut Session,
            input_dims: *const *const i64,
            input_count: usize,
            found: *mut *mut Session,
        ) -> c_uint;
        pub fn gk_find_output_dims(
            session: *mut Session,
            input_dims: *const *const i64,
            input_count: usize,
            output: usize,
            dims: *mut i64,
        ) -> c_uint;
        pub fn gk_run_shapes(
            session: *mut Session,
            inputs: *const *const c_void,
            input_dims: *const *const i64,
            input_count: usize,
            outputs: *const *mut c_void,
            output_count: usize,
        ) -> c_uint;
        pub fn gk_run(
            session: *mut Session,
            inputs: *const *const c_void,
            input_count: usize,
            outputs: *const *mut c_void,
            output_count: usize,
        ) -> c_uint;
    }
}

/// Limits of runs, and how networks that are not saved programs are converted. The default of a field is no limit, or
/// what `graphkit.h` says.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Most threads of a run. 0: those of the export, at most one for each core.
    pub threads: i32,
    /// Most iterations of one loop. 0: any number.
    pub max_iterations: i64,
    /// Most seconds of a run. 0: any time.
    pub timeout: f64,
    /// The command `graphkit`. None: `GRAPHKIT_CONVERTER`, or `graphkit` on PATH. Empty: no process may be started.
    pub converter: Option<OsString>,
    /// More arguments of `graphkit export`, such as "x:1,64".
    pub converter_arguments: Vec<OsString>,
    /// Most seconds of a conversion. 0: any time.
    pub convert_timeout: f64,
    /// A folder that keeps converted programs. None: they are not kept.
    pub cache_folder: Option<PathBuf>,
    /// Most bytes of the programs in `cache_folder`. 0: 8 GiB. -1: any number.
    pub cache_bytes: i64,
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
    Limit(String),
    Converter(String),
    Unsupported(String),
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
            10 => Error::Limit(text),
            11 => Error::Converter(text),
            12 => Error::Unsupported(text),
            _ => Error::Internal(text),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Argument(text)
            | Error::File(text)
            | Error::Format(text)
            | Error::Version(text)
            | Error::Processor(text)
            | Error::Memory(text)
            | Error::Run(text)
            | Error::Internal(text)
            | Error::Library(text)
            | Error::Limit(text)
            | Error::Converter(text)
            | Error::Unsupported(text) => f.write_str(text),
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
    /// The axis that has the rows of a batch, if rows are independent.
    pub batch_axis: Option<usize>,
}

impl Port {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().map(|&size| size as usize).product()
    }

    /// The port for another number of rows; the same one if it has no batch axis.
    pub fn with_rows(&self, rows: i64) -> Port {
        let mut port = self.clone();
        if let Some(axis) = self.batch_axis {
            port.shape[axis] = rows;
        }
        port
    }

    /// SAFETY: `name` is a string, and `dims` has `rank` elements.
    unsafe fn new(name: *const c_char, kind: c_uint, dims: *const i64, rank: usize, axis: i32) -> Result<Port, Error> {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let kind = Type::of(kind).ok_or_else(|| Error::Version(format!("'{name}' has an unknown type: {kind}")))?;
        let shape = std::slice::from_raw_parts(dims, rank).to_vec();
        Ok(Port { name, kind, shape, batch_axis: usize::try_from(axis).ok() })
    }
}

/// An open file. All of its programs hold it.
#[derive(Debug)]
struct File(NonNull<c::Session>);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: nothing else can use the sessions of the file any more.
        unsafe { c::gk_close(self.0.as_ptr()) }
    }
}

/// A program that is ready to run.
#[derive(Debug)]
pub struct Program {
    file: Arc<File>,
    session: NonNull<c::Session>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

// SAFETY: threads may use one session at the same time, but for gk_close, which the last program alone calls.
unsafe impl Send for Program {}
unsafe impl Sync for Program {}

impl Program {
    /// Opens a file, and returns its first program.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Program, Error> {
        let path = text(path.as_ref().as_os_str())?;
        let converter = options.converter.as_deref().map(text).transpose()?;
        let folder = options.cache_folder.as_deref().map(|folder| text(folder.as_os_str())).transpose()?;
        let texts = options.converter_arguments.iter().map(|each| text(each)).collect::<Result<Vec<_>, _>>()?;
        let arguments: Vec<_> = texts.iter().map(|each| each.as_ptr()).chain([std::ptr::null()]).collect();
        let given = c::Options {
            threads: options.threads,
            max_iterations: options.max_iterations,
            timeout: options.timeout,
            converter: converter.as_ref().map_or(std::ptr::null(), |each| each.as_ptr()),
            converter_arguments: arguments.as_ptr(),
            convert_timeout: options.convert_timeout,
            cache_folder: folder.as_ref().map_or(std::ptr::null(), |each| each.as_ptr()),
            cache_bytes: options.cache_bytes,
        };
        let mut session = std::ptr::null_mut();
        // SAFETY: all pointers are valid during the call, and the list of arguments ends with a null pointer.
        let status = unsafe {
            c::gk_open_checked(path.as_ptr(), &given, &mut session, c::ABI_VERSION, std::mem::size_of::<c::Options>())
        };
        let session = NonNull::new(session).ok_or_else(|| Error::of(status))?;
        Program::of(Arc::new(File(session)), session)
    }

    /// The program of a session, which is one of `file`.
    fn of(file: Arc<File>, session: NonNull<c::Session>) -> Result<Program, Error> {
        let mut program = Program { file, session, inputs: Vec::new(), outputs: Vec::new() };
        let session = session.as_ptr();
        // SAFETY: the session is open, and the numbers of inputs and outputs are below their counts.
        unsafe {
            for i in 0..c::gk_input_count(session) {
                let (dims, rank) = (c::gk_input_dims(session, i), c::gk_input_rank(session, i));
                let (name, kind) = (c::gk_input_name(session, i), c::gk_input_type(session, i));
                program.inputs.push(Port::new(name, kind, dims, rank, c::gk_input_batch_axis(session, i))?);
            }
            for i in 0..c::gk_output_count(session) {
                let (dims, rank) = (c::gk_output_dims(session, i), c::gk_output_rank(session, i));
                let (name, kind) = (c::gk_output_name(session, i), c::gk_output_type(session, i));
                program.outputs.push(Port::new(name, kind, dims, rank, c::gk_output_batch_axis(session, i))?);
            }
        }
        Ok(program)
    }

    /// The program of the same file for inputs of these shapes.
    pub fn find(&self, shapes: &[&[i64]]) -> Result<Program, Error> {
        let dims = self.dims(shapes)?;
        let mut found = std::ptr::null_mut();
        // SAFETY: there is a shape for each input, with a size for each of its axes.
        let status = unsafe { c::gk_find_program(self.session.as_ptr(), dims.as_ptr(), dims.len(), &mut found) };
        let found = NonNull::new(found).ok_or_else(|| Error::of(status))?;
        Program::of(self.file.clone(), found)
    }

    /// Pointers to the sizes of shapes. The library cannot know how many they are.
    fn dims(&self, shapes: &[&[i64]]) -> Result<Vec<*const i64>, Error> {
        if shapes.len() != self.inputs.len() {
            let text = format!("the program has {} inputs, but {} shapes were given", self.inputs.len(), shapes.len());
            return Err(Error::Argument(text));
        }
        for (shape, port) in shapes.iter().zip(&self.inputs) {
            if shape.len() != port.shape.len() {
                return Err(Error::Argument(format!("the shape of input '{}' has another rank", port.name)));
            }
        }
        Ok(shapes.iter().map(|shape| shape.as_ptr()).collect())
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
            check(tensor, port)?;
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

    /// Runs inputs of these shapes. If rows are independent, a batch may have any size. Returns the shape and the
    /// elements of each output.
    pub fn run_shapes(&self, inputs: &[Tensor], shapes: &[&[i64]]) -> Result<Vec<(Vec<i64>, Tensor)>, Error> {
        let dims = self.dims(shapes)?;
        let mut outputs = Vec::new();
        for (i, port) in self.outputs.iter().enumerate() {
            let mut shape = vec![0; port.shape.len()];
            // SAFETY: there is a shape for each input, and room for a size for each axis of the output.
            let status = unsafe {
                c::gk_find_output_dims(self.session.as_ptr(), dims.as_ptr(), dims.len(), i, shape.as_mut_ptr())
            };
            if status != 0 {
                return Err(Error::of(status));
            }
            let len = shape.iter().map(|&size| size as usize).product();
            outputs.push((shape, Tensor::zeros(port.kind, len)));
        }
        // The library has accepted the shapes, so no size is negative.
        for ((tensor, port), shape) in inputs.iter().zip(&self.inputs).zip(shapes) {
            check(tensor, &Port { shape: shape.to_vec(), ..port.clone() })?;
        }
        let given: Vec<*const c_void> = inputs.iter().map(Tensor::pointer).collect();
        if given.len() != dims.len() {
            return Err(Error::Argument(format!("{} inputs were given, but {} shapes", given.len(), dims.len())));
        }
        let made: Vec<*mut c_void> = outputs.iter_mut().map(|(_, tensor)| tensor.pointer_mut()).collect();
        let session = self.session.as_ptr();
        // SAFETY: there are as many arrays as inputs and outputs, and their types and sizes are those of the shapes.
        let status =
            unsafe { c::gk_run_shapes(session, given.as_ptr(), dims.as_ptr(), given.len(), made.as_ptr(), made.len()) };
        if status == 0 {
            Ok(outputs)
        } else {
            Err(Error::of(status))
        }
    }
}

fn text(given: &OsStr) -> Result<CString, Error> {
    let name = given.to_string_lossy();
    CString::new(given.as_encoded_bytes()).map_err(|_| Error::Argument(format!("{name:?} contains a zero byte")))
}

fn check(tensor: &Tensor, port: &Port) -> Result<(), Error> {
    if tensor.kind() != port.kind || tensor.len() != port.len() {
        let expected = format!("{} elements of {}", port.len(), port.kind.name());
        return Err(Error::Argument(format!("input '{}' must have {expected}", port.name)));
    }
    Ok(())
}
