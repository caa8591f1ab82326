//! The library that makes calls fail, and how the program is started with it.

use crate::workplace::{Ended, Workplace, end};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Calls on files, as the library names them.
pub(crate) const FILE_CALLS: &str = "open,write,fsync,close,ftruncate,rename,mkdir,unlink";

/// An error of the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) number: i32,
    /// What a message says about it.
    pub(crate) text: &'static str,
}

pub(crate) const NO_SPACE: Fault = Fault { number: 28, text: "No space left on device" };
pub(crate) const FAILING_DISK: Fault = Fault { number: 5, text: "Input/output error" };
pub(crate) const READ_ONLY: Fault = Fault { number: 30, text: "Read-only file system" };
pub(crate) const INTERRUPTED: Fault = Fault { number: 4, text: "Interrupted system call" };
/// A write that writes half of what it was given.
pub(crate) const SHORT: Fault = Fault { number: 0, text: "" };

/// The library, built once; none without a C compiler, and that is said.
pub(crate) fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shim.c");
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{}.so", std::process::id()));
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
        let built = command.arg(&library).arg(source).args(["-ldl", "-lpthread"]).output().ok()?;
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(library)
    });
    if built.is_none() {
        eprintln!("skipped: there is no C compiler");
    }
    built.as_deref()
}

/// Whether all errors are tried at all calls.
pub(crate) fn tries_all() -> bool {
    std::env::var_os("KERNFUSION_FAULTS").is_some_and(|value| value == "all")
}

/// How a command ended, and which call failed on what, if one did.
pub(crate) struct Tried {
    pub(crate) ended: Ended,
    pub(crate) failed: Option<(String, PathBuf)>,
}

/// Runs a command of which a call fails: the one of this number, or every first attempt.
pub(crate) fn run(
    work: &Workplace,
    library: &Path,
    flags: &str,
    calls: &str,
    number: &str,
    fault: Fault,
) -> Tried {
    let report = work.path("report-of-the-fault");
    // Not among what is counted, and not there before.
    let _ = std::fs::remove_file(&report);
    let mut command = work.command(flags);
    command.env("LD_PRELOAD", library).env("FAULT_UNDER", work.0.path()).env("FAULT_CALLS", calls);
    command.env("FAULT_NUMBER", number).env("FAULT_ERROR", fault.number.to_string());
    command.env("FAULT_REPORT", &report).env("FAULT_LEAST", "32768");
    let ended = end(command.spawn().unwrap());
    let failed = std::fs::read_to_string(&report).ok().map(|text| {
        let (call, path) = text.lines().next().unwrap().split_once(' ').unwrap();
        (call.to_string(), PathBuf::from(path))
    });
    let _ = std::fs::remove_file(&report);
    Tried { ended, failed }
}

/// Everything in a directory, by name, with its content; directories without one.
pub(crate) fn tree(directory: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(directory) else { return found };
    for entry in entries {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(tree(&entry.path())),
            false => _ = found.insert(entry.path(), std::fs::read(entry.path()).unwrap()),
        }
    }
    found
}

/// Files, and directories without any, that were only there while something was being written.
pub(crate) fn leftovers(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_string_lossy().starts_with('.') {
            found.push(entry.path());
        } else if entry.file_type().unwrap().is_dir() {
            found.extend(leftovers(&entry.path()));
        }
    }
    found
}
