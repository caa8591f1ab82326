//! Standard output for people and pipes, and progress on a terminal.

use crate::common::error::CliError;
pub(crate) use crate::report::plot::counted;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};

/// Standard output. A reader that has gone away (`kernfusion dump | head`) is no error: what comes later is dropped.
/// Any other failure is kept until the command ends, so that a full disk stops no training.
pub(crate) struct Screen {
    out: BufWriter<Stdout>,
    failure: Option<io::Error>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Screen { out: BufWriter::new(io::stdout()), failure: None }
    }

    /// Writes a line and shows it at once.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) {
        self.attempt(|out| writeln!(out, "{line}").and_then(|()| out.flush()));
    }

    /// Writes a text as it is and shows it at once.
    pub(crate) fn text(&mut self, text: &str) {
        self.attempt(|out| out.write_all(text.as_bytes()).and_then(|()| out.flush()));
    }

    /// Reports what failed, if anything did.
    pub(crate) fn finish(self) -> Result<(), CliError> {
        match self.failure {
            Some(cause) if cause.kind() != ErrorKind::BrokenPipe => Err(CliError::StandardOutput(cause)),
            _ => Ok(()),
        }
    }

    /// Does nothing any more after the first failure.
    fn attempt(&mut self, write: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>) {
        if self.failure.is_none() {
            self.failure = write(&mut self.out).err();
        }
    }
}

/// Writes a line to standard error. Failures are ignored: without standard error there is no place to report them.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A bar on standard error for `length` units of work; nothing where that is no terminal. The template says what
/// stands behind the bar.
pub(crate) fn progress(length: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("{{bar:32}} {template}"));
    let target = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    ProgressBar::with_draw_target(Some(length), target)
        .with_style(style.expect("the template is well formed"))
}

/// Digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in MiB.
pub(crate) fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
