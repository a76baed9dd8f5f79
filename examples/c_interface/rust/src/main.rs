//! Runs a program that graphkit saved: run [--rows N] [--cache FOLDER] PROGRAM [INPUT.bin ...]
//!
//! With --rows, it runs a batch of N rows, which the programs of the file compute in parts. The program is a .gkp file,
//! or a .onnx or .json file, which the command `graphkit` converts. With --cache, the folder keeps converted programs.
//! Each file contains the elements of one input. Without files, inputs are generated. Prints inputs and outputs.

mod graphkit;

use graphkit::{Options, Port, Program, Tensor, Type};
use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

fn read_file(path: &str, port: &Port) -> Result<Tensor, Box<dyn Error>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    match Tensor::from_bytes(port.kind, &bytes) {
        Some(tensor) if tensor.len() == port.len() => Ok(tensor),
        _ => Err(format!("{path} does not contain {} elements of {}", port.len(), port.kind.name()).into()),
    }
}

/// Floating-point numbers from -1 to 0.875, integers that are 0 or 1.
fn generated(port: &Port) -> Result<Tensor, Box<dyn Error>> {
    match port.kind {
        Type::Float32 => Ok(Tensor::Float32((0..port.len()).map(|k| (k % 16) as f32 / 8.0 - 1.0).collect())),
        Type::Int64 => Ok(Tensor::Int64((0..port.len()).map(|k| (k % 2) as i64).collect())),
        _ => Err("inputs are generated for float32 and int64 only: give files".into()),
    }
}

fn run(path: &str, files: &[String], rows: Option<i64>, options: Options) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(io::stdout().lock());
    let program = Program::open(path, options)?;
    let count = program.inputs().len();
    if !files.is_empty() && files.len() != count {
        return Err(format!("the program has {count} inputs, but {} files were given", files.len()).into());
    }
    let ports: Vec<Port> =
        program.inputs().iter().map(|port| rows.map_or(port.clone(), |rows| port.with_rows(rows))).collect();
    let mut inputs = Vec::new();
    for (i, port) in ports.iter().enumerate() {
        writeln!(out, "input {} {} {:?}", port.name, port.kind.name(), port.shape)?;
        inputs.push(if files.is_empty() { generated(port)? } else { read_file(&files[i], port)? });
    }
    let shapes: Vec<&[i64]> = ports.iter().map(|port| port.shape.as_slice()).collect();
    let outputs: Vec<(Vec<i64>, Tensor)> = if rows.is_some() {
        program.run_shapes(&inputs, &shapes)?
    } else {
        let found = program.find(&shapes)?;
        let shapes = found.outputs().iter().map(|port| port.shape.clone());
        shapes.zip(found.run(&inputs)?).collect()
    };
    for (port, (shape, output)) in program.outputs().iter().zip(outputs) {
        writeln!(out, "output {} {} {:?}", port.name, port.kind.name(), shape)?;
        match output {
            Tensor::Float32(values) => values.iter().try_for_each(|value| writeln!(out, "{value}"))?,
            Tensor::Int64(values) => values.iter().try_for_each(|value| writeln!(out, "{value}"))?,
            other => writeln!(out, "({} elements)", other.len())?,
        }
    }
    out.flush()?;
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let (mut rows, mut options) = (None, Options::default());
    if arguments.len() > 1 && arguments[0] == "--rows" {
        rows = arguments[1].parse().ok().filter(|&rows| rows >= 0);
        arguments.drain(..if rows.is_some() { 2 } else { arguments.len() });
    }
    if arguments.len() > 1 && arguments[0] == "--cache" {
        options.cache_folder = Some(arguments[1].clone().into());
        arguments.drain(..2);
    }
    let [path, files @ ..] = arguments.as_slice() else {
        eprintln!("usage: run [--rows N] [--cache FOLDER] PROGRAM [INPUT.bin ...]");
        return ExitCode::from(2);
    };
    match run(path, files, rows, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// cargo test, with GRAPHKIT_PROGRAM=PROGRAM.gkp
    #[test]
    fn eight_threads_share_a_program() {
        let path = std::env::var("GRAPHKIT_PROGRAM").expect("set GRAPHKIT_PROGRAM to a program");
        let program = Program::open(path, Options { threads: 1, ..Options::default() }).unwrap();
        let inputs: Vec<Tensor> = program.inputs().iter().map(|port| generated(port).unwrap()).collect();
        let expected = program.run(&inputs).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..100).for_each(|_| assert_eq!(program.run(&inputs).unwrap(), expected)));
            }
        });
    }

    #[test]
    fn programs_are_found_by_their_shapes() {
        let path = std::env::var("GRAPHKIT_PROGRAM").expect("set GRAPHKIT_PROGRAM to a program");
        let program = Program::open(path, Options::default()).unwrap();
        let shapes: Vec<&[i64]> = program.inputs().iter().map(|port| port.shape.as_slice()).collect();
        let found = program.find(&shapes).unwrap();
        assert_eq!(found.inputs(), program.inputs());
        let inputs: Vec<Tensor> = program.inputs().iter().map(|port| generated(port).unwrap()).collect();
        let expected = program.run(&inputs).unwrap();
        let outputs = program.run_shapes(&inputs, &shapes).unwrap();
        assert_eq!(outputs.into_iter().map(|(_, tensor)| tensor).collect::<Vec<_>>(), expected);
        assert!(matches!(program.run_shapes(&[], &shapes), Err(graphkit::Error::Argument(_))));
        assert!(matches!(program.find(&[&[7]]), Err(graphkit::Error::Argument(_))));
        drop(program);
        assert_eq!(found.run(&inputs).unwrap(), expected);
    }

    /// Writes a converter: a shell script. `$6` is its output, and `$7` its first further argument.
    fn script(path: PathBuf, body: &str) -> Option<OsString> {
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        Some(path.into())
    }

    #[test]
    fn networks_are_converted() {
        let program = std::env::var("GRAPHKIT_PROGRAM").expect("set GRAPHKIT_PROGRAM to a program");
        let folder = std::env::temp_dir().join(format!("graphkit-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (network, log, kept) = (folder.join("net.onnx"), folder.join("log"), folder.join("kept"));
        std::fs::write(&network, "a network").unwrap();
        let body = format!(r#"echo "$7" >> "{}"; cp "{program}" "$6""#, log.display());
        let options = Options {
            converter: script(folder.join("copies"), &body),
            converter_arguments: vec!["x:1,64".into()],
            convert_timeout: 100.0,
            cache_folder: Some(kept.clone()),
            ..Options::default()
        };
        for _ in 0..2 {
            let found = Program::open(&network, options.clone()).unwrap();
            assert_eq!(found.inputs(), Program::open(&program, Options::default()).unwrap().inputs());
        }
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "x:1,64\n");
        std::fs::remove_dir_all(&kept).unwrap();
        Program::open(&network, Options { cache_bytes: 1, ..options.clone() }).unwrap();
        assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 0);
        let refused = Program::open(&network, Options { converter: Some("".into()), ..options.clone() });
        assert!(matches!(refused, Err(graphkit::Error::Converter(_))));
        let sleeps = script(folder.join("sleeps"), "sleep 100");
        let late = Program::open(&network, Options { converter: sleeps, convert_timeout: 0.1, ..options.clone() });
        assert!(matches!(late, Err(graphkit::Error::Limit(_))));
        let zero = Program::open(&network, Options { converter: Some("a\0".into()), ..options });
        assert!(matches!(zero, Err(graphkit::Error::Argument(_))));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn errors_have_their_kind() {
        let options = Options { threads: -1, ..Options::default() };
        assert!(matches!(Program::open("missing.gkp", Options::default()), Err(graphkit::Error::File(_))));
        assert!(matches!(Program::open("missing.gkp", options), Err(graphkit::Error::Argument(_))));
    }
}
