//! Signals that end a run: the first one with a checkpoint, a second Ctrl-C at once.
//!
//! A terminal that is closed sends SIGHUP more than once, and some systems SIGTERM, so these never end a run at once. SIGKILL
//! does; files are whole at any moment.

use crate::common::error::CliError;
use crate::training::live;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whether runs are to end.
static STOP: AtomicBool = AtomicBool::new(false);

/// The signal that said so first.
static SIGNAL: AtomicU8 = AtomicU8::new(INTERRUPT);

/// The number of SIGINT.
const INTERRUPT: u8 = 2;

/// Set by the first signal.
pub(crate) fn upon_signals() -> Result<&'static AtomicBool, CliError> {
    /// Of several ranks in one process the first one that asks listens for all.
    static LISTENS: Mutex<bool> = Mutex::new(false);
    let mut listens = LISTENS.lock().unwrap_or_else(PoisonError::into_inner);
    if !*listens {
        listen().map_err(|cause| CliError::System { what: "cannot listen to signals", cause })?;
        *listens = true;
    }
    Ok(&STOP)
}

/// The exit code of a run that was ended, as shells have it: 128 and the number of the signal; that of Ctrl-C if there was none.
pub(crate) fn exit_code() -> u8 {
    128 + SIGNAL.load(Ordering::Relaxed)
}

fn take(signal: u8) {
    if !STOP.load(Ordering::Relaxed) {
        SIGNAL.store(signal, Ordering::Relaxed);
        STOP.store(true, Ordering::Relaxed);
    } else if signal == INTERRUPT {
        live::leave();
        std::process::exit((128 + INTERRUPT).into());
    }
}

#[cfg(unix)]
fn listen() -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    if !ignores(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || signals.forever().for_each(|signal| take(signal as u8)))?;
    Ok(())
}

/// Whether this process was started to outlive its terminal, as by nohup. Where that cannot be told, it is.
#[cfg(unix)]
fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(not(unix))]
fn listen() -> io::Result<()> {
    ctrlc::set_handler(|| take(INTERRUPT)).map_err(io::Error::other)
}
