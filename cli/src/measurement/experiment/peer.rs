//! PyTorch's side of a verification, as a process of its own.

use crate::common::error::CliError;
use crate::common::screen::{Screen, progress};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Lines of a run in a pipe, about.
const LINES: u64 = 10;

/// A Python that is to train from a folder.
pub(crate) struct Peer<'a> {
    pub(crate) python: &'a Path,
    pub(crate) folder: &'a Path,
    pub(crate) threads: usize,
    pub(crate) device: &'static str,
    pub(crate) steps: u64,
}

impl Peer<'_> {
    /// Does all steps and returns what was written; none if `stop` was set.
    pub(crate) fn train(&self, stop: &AtomicBool, screen: &mut Screen) -> Result<Option<String>, CliError> {
        self.check()?;
        let failed = |cause| CliError::System { what: "cannot run PyTorch's side", cause };
        let mut messages = tempfile::tempfile().map_err(failed)?;
        let mut command = self.python();
        command.arg(self.folder.join("verification.py"));
        command.args(["--threads", &self.threads.to_string(), "--device", self.device]);
        command.stdout(Stdio::piped()).stderr(messages.try_clone().map_err(failed)?);
        let mut child = command.spawn().map_err(failed)?;
        let rows = self.rows(&mut child, stop, screen);
        if rows.as_ref().map_or(true, Option::is_none) {
            // It may have ended by itself.
            let _ = child.kill();
        }
        let status = child.wait().map_err(failed)?;
        let rows = rows.map_err(failed)?;
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if !status.success() {
            let mut text = String::new();
            messages.rewind().and_then(|()| messages.read_to_string(&mut text)).map_err(failed)?;
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
            return Err(CliError::Peer(format!("PyTorch's side failed ({status}): {last}")));
        }
        Ok(rows)
    }

    /// Whether there is a PyTorch, without starting it.
    fn check(&self) -> Result<(), CliError> {
        let python = self.python.display();
        let advice = format!(
            "name one that has PyTorch with --python, or run {}/verification.py on a machine that has it and give what it \
             writes with --reference",
            self.folder.display()
        );
        let script = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)";
        let output = self.python().args(["-c", script]).output();
        let output = output.map_err(|cause| {
            CliError::Peer(format!("cannot start the Python {python} ({cause}): {advice}"))
        })?;
        match output.status.success() {
            true => Ok(()),
            false => Err(CliError::Peer(format!(
                "the Python {python} has no PyTorch: install it ({python} -m pip install torch), {advice}"
            ))),
        }
    }

    /// Rows as they come; none once `stop` is set.
    fn rows(
        &self,
        child: &mut Child,
        stop: &AtomicBool,
        screen: &mut Screen,
    ) -> std::io::Result<Option<String>> {
        let out = child.stdout.take().expect("it is a pipe");
        let bar = progress(self.steps, "{pos}/{len} steps of PyTorch, {eta} left, {msg}");
        let mut text = String::new();
        for line in BufReader::new(out).lines() {
            let line = line?;
            if stop.load(Ordering::Relaxed) {
                bar.finish_and_clear();
                return Ok(None);
            }
            let row: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(library) = row["library"].as_str() {
                screen.line(format!("{library}, {}", row["place"].as_str().unwrap_or_default()));
            }
            if let (Some(step), Some(loss)) = (row["step"].as_u64(), row["loss"].as_f64()) {
                bar.set_position(step);
                bar.set_message(format!("loss {loss:.4}"));
                let due = step == 1 || step == self.steps || step.is_multiple_of((self.steps / LINES).max(1));
                if bar.is_hidden() && due {
                    screen.line(format!("step {step:>6}  PyTorch's loss {loss:.4}"));
                }
            }
            text.push_str(&line);
            text.push('\n');
        }
        bar.finish_and_clear();
        Ok(Some(text))
    }

    fn python(&self) -> Command {
        let mut command = Command::new(self.python);
        // The folder is to hold what was written there, and nothing else.
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
        command
    }
}
