//! The same input through the command line: an exit code, one message, and nothing written.

use crate::case::{Finding, Outcome, input};
use crate::mutate::Folder;
use crate::readers::Reader;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// A model of one small layer, for commands that train.
const SMALL: &str = r#"{"layers": 1, "width": 8, "heads": 2, "context": 8}"#;

/// KiB of address space: no command may take the machine's memory.
const MEMORY: u64 = 8 << 20;

/// Seconds after which a command is ended.
const LONGEST: u64 = 60;

/// Runs all commands of a reader on the case of this number.
pub fn run_commands(reader: &Reader, seeds: &[Folder], seed: u64, number: u64, program: &Path) -> Outcome {
    let input = input(reader, seeds, seed, number);
    let mut refused = None;
    for flags in reader.commands {
        match run_one(program, flags, &input) {
            Ok(None) => {}
            Ok(Some(message)) => refused = Some(message),
            Err(fault) => return Outcome::Wrong(Finding { fault: format!("{flags}: {fault}"), input }),
        }
    }
    refused.map_or(Outcome::Read, Outcome::Refused)
}

/// The message of a command that failed as it should, or what it did wrong.
fn run_one(program: &Path, flags: &str, input: &Folder) -> Result<Option<String>, String> {
    let place = tempfile::tempdir().map_err(|error| error.to_string())?;
    let put = |name: &str, content: &[u8]| {
        std::fs::write(place.path().join(name), content).map_err(|error| error.to_string())
    };
    put("small.json", SMALL.as_bytes())?;
    input.iter().try_for_each(|(name, content)| put(name, content))?;
    let before = names(place.path());
    let mut shell = Command::new("sh");
    let script = format!("ulimit -v {MEMORY}; exec timeout {LONGEST} \"$0\" \"$@\"");
    shell.args(["-c", &script]).arg(program).args(flags.split_whitespace());
    shell.current_dir(place.path()).env("KERNFUSION_DATA", place.path()).stdin(Stdio::null());
    let output = shell.output().map_err(|error| error.to_string())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let messages: Vec<_> = errors.lines().filter(|line| line.starts_with("error: ")).collect();
    let left: Vec<_> = names(place.path()).difference(&before).cloned().collect();
    match (output.status.code(), &messages[..]) {
        (Some(0), []) => Ok(None),
        (Some(1 | 2), [message]) if left.is_empty() => Ok(Some((*message).into())),
        (Some(1 | 2), [_]) => Err(format!("leaves {left:?}")),
        (Some(124), _) => Err(format!("takes longer than {LONGEST} s")),
        _ => Err(format!("ends with {} and says {errors:?}", output.status)),
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
