//! Where commands write: one rule for all of them. Nothing that took hours is replaced without being asked for.
//!
//! | what | if it is there already | while another process writes it |
//! |---|---|---|
//! | the directory of a run (train, tune, experiment, import) | the default: the next free name; named: refused without `--overwrite` | the default: the next free name; named: refused |
//! | the folder of a model (export, compile) | refused without `--overwrite`; replaced in one step, if all files in it are of such a folder | the first one has it |
//! | the log of a run (`--log`), its event files (`--tensorboard DIR`) | refused without `--overwrite`; a resumed run goes on with its own | refused |
//! | a file made from something else (`-o`, `--json`, `--html`, `--outputs`, a report) | replaced in one step, as compilers do, unless it is a part of a run or what it is made from | the last one has it |
//!
//! `--overwrite` removes what a run writes, by name, and nothing else that may be in the directory.

use crate::common::error::CliError;
use crate::common::screen::Screen;
use kernfusion_lm::checkpoint::CHECKPOINT_FILE;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// What is written over.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Destination {
    /// Replace what another run has left there; other files stay
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// The log of a training run, in its directory.
pub(crate) const LOG: &str = "log.jsonl";

/// The log of a run of an experiment.
pub(crate) const EXPERIMENT_LOG: &str = "losses.jsonl";

/// Files of runs. The checkpoint is the last, as it is the last to be removed.
const RUN: [&str; 14] = [
    LOG,
    EXPERIMENT_LOG,
    "run.json",
    "run.html",
    "figures.json",
    "report.html",
    "reference.jsonl",
    "shape.json",
    "pytorch/verification.py",
    "pytorch/model.py",
    "pytorch/run.json",
    "pytorch/start.safetensors",
    "adapter/checkpoint.safetensors",
    CHECKPOINT_FILE,
];

/// Directories in that of a run.
const INNER: [&str; 2] = ["pytorch", "adapter"];

/// Those that take long to make: a directory with one of them has a run.
const PRECIOUS: [&str; 4] = [CHECKPOINT_FILE, LOG, EXPERIMENT_LOG, "reference.jsonl"];

/// How the names of event files begin.
const EVENTS: &str = "events.out.tfevents.";

/// The file that a run keeps locked. The lock ends with the process, however that ends.
const LOCK: &str = ".kernfusion.lock";

/// A directory that belongs to this process until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    path: PathBuf,
    lock: PathBuf,
    file: File,
    /// Directories that were made for it, the innermost first.
    made: Vec<PathBuf>,
    /// Whether what another run has left may be removed.
    replaces: bool,
}

impl Destination {
    /// The directory of a new run: the one that is named, or the first one that is free of `default`, `default-2`, …, which is said
    /// if it is not the first. `sources` is what the run is made from, which it must not replace.
    pub(crate) fn of_run(
        self,
        named: Option<&Path>,
        default: &Path,
        sources: &[&Path],
        screen: &mut Screen,
    ) -> Result<Claim, CliError> {
        let claim = match (named, self.overwrite) {
            (Some(path), _) => self.named(path)?,
            (None, true) => self.named(default)?,
            (None, false) => next_free(default, screen)?,
        };
        if self.overwrite {
            let mut parts = sources.iter().filter(|source| is_part_of_run(source, &claim.path));
            if let Some(source) = parts.next() {
                return Err(CliError::Usage(format!(
                    "--overwrite would remove {}, which the run is made from: name another directory (--out)",
                    source.display()
                )));
            }
        }
        Ok(claim)
    }

    fn named(self, path: &Path) -> Result<Claim, CliError> {
        let mut claim = Claim::new(path)?.ok_or_else(|| CliError::InUse { path: path.into() })?;
        match has_run(path) && !self.overwrite {
            true => Err(CliError::HasRun { path: path.into() }),
            false => {
                claim.replaces = self.overwrite;
                Ok(claim)
            }
        }
    }

    /// The directory of a run that goes on.
    pub(crate) fn of_resumed(path: &Path) -> Result<Claim, CliError> {
        if !path.join(CHECKPOINT_FILE).exists() {
            let path = path.join(CHECKPOINT_FILE);
            return Err(kernfusion_lm::Error::from(kernfusion_lm::checkpoint::CheckpointError::Missing {
                path,
            })
            .into());
        }
        Claim::new(path)?.ok_or_else(|| CliError::InUse { path: path.into() })
    }

    /// Refuses a log with rows that would be lost; `own` has the rows of a run that goes on. Says whether the log has rows that are
    /// to be removed.
    pub(crate) fn log(self, path: &Path, own: Option<&Path>) -> Result<bool, CliError> {
        let has_rows = std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() > 0);
        if !has_rows || self.overwrite {
            return Ok(has_rows);
        }
        match own {
            None => Err(CliError::Occupied { path: path.into(), what: "rows of another run" }),
            Some(own) if !continues(path, own)? => {
                Err(CliError::Occupied { path: path.into(), what: "rows that this run has not written" })
            }
            Some(_) => Ok(false),
        }
    }

    /// The directory of event files; a new run has it for itself.
    pub(crate) fn events(self, path: &Path, resumed: bool) -> Result<Claim, CliError> {
        let mut claim = Claim::new(path)?.ok_or_else(|| CliError::InUse { path: path.into() })?;
        if !resumed && !self.overwrite && !claim.event_files()?.is_empty() {
            return Err(CliError::Occupied { path: path.into(), what: "event files of another run" });
        }
        claim.replaces = self.overwrite && !resumed;
        Ok(claim)
    }
}

/// Refuses a file that is made from `sources`, if it would replace one of them or a part of a run, or cannot be there: a folder that is not there
/// is taken for a slip of the pen. Commands ask before they begin.
pub(crate) fn check_derived(path: &Path, sources: &[&Path]) -> Result<(), CliError> {
    let refused = |reason: String| Err(CliError::Content { path: path.into(), reason });
    if let Some(source) = sources.iter().find(|source| is_same(source, path)) {
        return refused(format!("it is not replaced by what is made from {}", source.display()));
    }
    let unwritable = |kind, reason: String| {
        Err(CliError::Write { path: path.into(), cause: io::Error::new(kind, reason) })
    };
    let directory = path.parent().unwrap_or(Path::new(""));
    if path.is_dir() {
        return unwritable(ErrorKind::IsADirectory, "it is a folder".into());
    }
    if !directory.as_os_str().is_empty() && !directory.is_dir() {
        return unwritable(ErrorKind::NotFound, format!("there is no folder {}", directory.display()));
    }
    let name = path.file_name().unwrap_or_default();
    if PRECIOUS.iter().any(|precious| name == *precious) && path.exists() {
        return refused(format!("it is a part of the run in {}: name another file", display(directory)));
    }
    Ok(())
}

/// Writes a text that is made from `sources`.
pub(crate) fn write_derived(path: &Path, text: &str, sources: &[&Path]) -> Result<(), CliError> {
    check_derived(path, sources)?;
    Ok(crate::text_file::save(path, text)?)
}

impl Claim {
    /// Claims a directory, which is made where it is missing; none if another process has it.
    fn new(path: &Path) -> Result<Option<Claim>, CliError> {
        let lock = path.join(LOCK);
        let failed = |path: &Path, cause| CliError::Write { path: path.into(), cause };
        // A process that ends removes lock and directory; one that was about to claim them begins again.
        loop {
            let made = missing(path);
            std::fs::create_dir_all(path).map_err(|cause| failed(path, cause))?;
            let file = match OpenOptions::new().write(true).create(true).truncate(false).open(&lock) {
                Err(error) if error.kind() == ErrorKind::NotFound && !path.exists() => continue,
                file => file.map_err(|cause| failed(&lock, cause))?,
            };
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
                    return Err(failed(&lock, error));
                }
                // A file system without locks lets everyone in.
                _ => {}
            }
            if is_file(&file, &lock) {
                return Ok(Some(Claim { path: path.into(), lock, file, made, replaces: false }));
            }
        }
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what another run has written if that was asked for, but for some files, and nothing else.
    pub(crate) fn clear(&self, keep: &[&str]) -> Result<(), CliError> {
        if !self.replaces {
            return Ok(());
        }
        self.clear_events()?;
        let others = RUN.iter().filter(|name| !keep.contains(name));
        others.map(|name| self.path.join(name)).try_for_each(|path| remove(&path))?;
        for inner in INNER {
            // One that has more stays.
            let _ = std::fs::remove_dir(self.path.join(inner));
        }
        Ok(())
    }

    /// Removes the event files of another run if that was asked for.
    pub(crate) fn clear_events(&self) -> Result<(), CliError> {
        let others = if self.replaces { self.event_files()? } else { vec![] };
        others.iter().try_for_each(|path| remove(path))
    }

    fn event_files(&self) -> Result<Vec<PathBuf>, CliError> {
        let failed = |cause| CliError::Read { path: self.path.clone(), cause };
        let entries = std::fs::read_dir(&self.path).map_err(failed)?;
        let names = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let is_event_file = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(EVENTS))
        };
        Ok(names.into_iter().filter(is_event_file).collect())
    }
}

impl Drop for Claim {
    /// Leaves no lock behind, and no empty directory. What cannot be removed does no harm: a lock ends with its process.
    fn drop(&mut self) {
        if cfg!(unix) && is_file(&self.file, &self.lock) {
            let _ = std::fs::remove_file(&self.lock);
        }
        let _ = self.made.iter().try_for_each(std::fs::remove_dir);
    }
}

/// The first directory without a run of `default`, `default-2`, …
fn next_free(default: &Path, screen: &mut Screen) -> Result<Claim, CliError> {
    for number in 1.. {
        let path = match number {
            1 => default.to_path_buf(),
            _ => PathBuf::from(format!("{}-{number}", default.display())),
        };
        if has_run(&path) {
            continue;
        }
        // Another run may have begun and ended in between.
        let claim = Claim::new(&path)?.filter(|_| !has_run(&path));
        if let Some(claim) = claim {
            if number > 1 {
                let (default, path) = (default.display(), path.display());
                screen.line(format!("{default} has a run: this one goes to {path}"));
            }
            return Ok(claim);
        }
    }
    unreachable!("some number is free")
}

fn has_run(directory: &Path) -> bool {
    PRECIOUS.iter().any(|name| std::fs::metadata(directory.join(name)).is_ok_and(|data| data.len() > 0))
}

/// Whether a file, or a directory, is what a run in `directory` would replace.
fn is_part_of_run(source: &Path, directory: &Path) -> bool {
    let [Ok(source), Ok(directory)] = [source, directory].map(std::fs::canonicalize) else { return false };
    let Ok(inner) = source.strip_prefix(directory) else { return false };
    inner == Path::new("") || RUN.iter().chain(&INNER).any(|name| inner == Path::new(name))
}

/// Whether a log has a step of another one: then both are of one run, as no two steps take the same time to the last digit.
fn continues(log: &Path, own: &Path) -> Result<bool, CliError> {
    let read = |path: &Path| match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(vec![]),
        bytes => bytes.map_err(|cause| CliError::Read { path: path.into(), cause }),
    };
    let (log, own) = (read(log)?, read(own)?);
    let own: std::collections::HashSet<_> = own.split(|byte| *byte == b'\n').collect();
    let has_time = |row: &[u8]| row.windows(9).any(|part| part == b"\"seconds\"");
    Ok(log.split(|byte| *byte == b'\n').any(|row| has_time(row) && own.contains(row)))
}

/// Whether two paths name one file, which may not be there yet.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    let resolved = |path: &Path| {
        std::fs::canonicalize(path).ok().or_else(|| {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Some(std::fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()?.join(path.file_name()?))
        })
    };
    resolved(a).is_some_and(|a| resolved(b) == Some(a))
}

/// Whether an open file is still the one of that name.
#[cfg(unix)]
fn is_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |data: std::fs::Metadata| (data.dev(), data.ino());
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(file), Ok(path)) => identity(file) == identity(path),
        _ => false,
    }
}

/// Elsewhere an open file keeps its name.
#[cfg(not(unix))]
fn is_file(_: &File, _: &Path) -> bool {
    true
}

/// The directories that would have to be made for one, the innermost first.
fn missing(path: &Path) -> Vec<PathBuf> {
    let ancestors = path.ancestors().filter(|path| !path.as_os_str().is_empty());
    ancestors.take_while(|path| !path.exists()).map(Path::to_path_buf).collect()
}

fn remove(path: &Path) -> Result<(), CliError> {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => {
            Err(CliError::Write { path: path.into(), cause })
        }
        _ => Ok(()),
    }
}

fn display(directory: &Path) -> String {
    if directory.as_os_str().is_empty() { "this directory".into() } else { directory.display().to_string() }
}
