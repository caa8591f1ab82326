//! Where a test works: a directory and the built program.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A directory of its own for each test, with the configuration of a small model.
pub(crate) struct Workplace(pub(crate) TempDir);

/// How a process ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Workplace {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = r#"{"layers": 1, "width": 8, "heads": 2, "context": 8}"#;
        std::fs::write(directory.path().join("small.json"), config).unwrap();
        Workplace(directory)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// The program in this directory, and with no other text than the embedded one. Flags are separated by blanks.
    pub(crate) fn command(&self, flags: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kernfusion"));
        command.args(flags.split_whitespace()).current_dir(self.0.path());
        command.env("KERNFUSION_DATA", self.0.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, flags: &str) -> Ended {
        end(self.command(flags).spawn().unwrap())
    }

    pub(crate) fn succeed(&self, flags: &str) -> String {
        let Ended { code, out, err } = self.run(flags);
        assert_eq!(code, Some(0), "{flags}: {err}");
        out
    }

    /// The message of a command that must fail with one line.
    pub(crate) fn fail(&self, flags: &str) -> String {
        message(self.run(flags), flags)
    }

    pub(crate) fn succeed_training(&self, flags: &str) -> String {
        self.succeed(&format!("{TRAIN} {flags}"))
    }

    /// Losses by step, as a log has them.
    pub(crate) fn losses(&self, log: &str) -> Vec<(u64, f64)> {
        let text = std::fs::read_to_string(self.path(log)).unwrap();
        let rows = text.lines().map(|row| serde_json::from_str::<Value>(row).unwrap());
        rows.filter_map(|row| Some((row["step"].as_u64()?, row["loss"].as_f64()?))).collect()
    }
}

/// Trains the small model, shows no sample, and validates once; a run that is there before is replaced.
pub(crate) const TRAIN: &str =
    "train --config small.json --batch-size 2 --sample-tokens 0 --validation-batches 1 --out run --overwrite";

pub(crate) fn end(child: Child) -> Ended {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) fn message(Ended { code, err, .. }: Ended, flags: &str) -> String {
    assert!(matches!(code, Some(1 | 2)), "{flags}: {code:?} {err}");
    let line = err.strip_suffix('\n').unwrap_or_else(|| panic!("{flags}: {err:?}"));
    assert!(!line.contains('\n') && line.starts_with("error: "), "{flags}: {err}");
    line.strip_prefix("error: ").unwrap().to_string()
}
