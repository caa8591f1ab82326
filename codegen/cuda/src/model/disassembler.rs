//! NVIDIA's `nvdisasm`, which prints machine code: found by `KERNFUSION_NVDISASM`, the file or its folder, else where the system looks for
//! programs.

use super::ModelError;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// What the program is called.
const NAME: &str = "nvdisasm";

/// The program, wherever it is.
fn program() -> PathBuf {
    let named = std::env::var_os("KERNFUSION_NVDISASM").filter(|path| !path.is_empty()).map(PathBuf::from);
    match named {
        Some(folder) if folder.is_dir() => folder.join(NAME),
        Some(file) => file,
        None => NAME.into(),
    }
}

/// Whether machine code can be read here.
pub fn is_present() -> bool {
    check().is_ok()
}

/// Whether the program can be run.
///
/// # Errors
/// Why not.
pub(super) fn check() -> Result<(), ModelError> {
    printed(Command::new(program()).arg("--version")).map(|_| ())
}

/// The code of a cubin, with encodings.
///
/// # Errors
/// The program is not there, or refuses the file.
pub(super) fn disassemble(cubin: &[u8]) -> Result<String, ModelError> {
    let file = || {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(cubin)?;
        Ok::<_, std::io::Error>(file)
    };
    let file = file().map_err(|cause| ModelError::Refused { message: cause.to_string() })?;
    printed(Command::new(program()).args(["-c", "-hex"]).arg(file.path()))
}

/// What a command prints.
fn printed(command: &mut Command) -> Result<String, ModelError> {
    let output = command.output();
    let output = output
        .map_err(|cause| ModelError::NoDisassembler { program: program(), cause: cause.to_string() })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(ModelError::Refused { message: message.lines().next().unwrap_or("no word").into() });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
