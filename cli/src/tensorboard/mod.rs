//! Runs for TensorBoard: event files that it reads while a run goes on.
//!
//! An event file is a chain of framed messages (`frames.rs`), the messages those of `messages.rs`. Every row of a run is one event,
//! which is whole in the file before the next step begins. A run that is resumed writes a file of its own; its first event says
//! where it goes on, upon which TensorBoard forgets what an earlier file has of later steps.

mod frames;
mod messages;

use frames::Frames;
use kernfusion_lm::train::{Row, StepReport, Watcher};
use messages::{Event, SessionLog, Summary, Value, What};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// An event file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the event file {}: {cause}", path.display())]
pub struct EventFileError {
    /// The file or its directory.
    pub path: PathBuf,
    /// What the operating system said.
    pub cause: std::io::Error,
}

/// An event file that is open for writing.
pub struct EventFile {
    path: PathBuf,
    frames: Frames,
}

impl EventFile {
    /// Starts a new event file for a run that has done `steps_done` steps. The directory is created if it does not exist.
    ///
    /// # Errors
    /// [`EventFileError`].
    pub fn create(directory: &Path, steps_done: u64) -> Result<Self, EventFileError> {
        let failed = |path: &Path, cause| EventFileError { path: path.into(), cause };
        std::fs::create_dir_all(directory).map_err(|cause| failed(directory, cause))?;
        let (seconds, process) = (now() as u64, std::process::id());
        let path = directory.join(format!("events.out.tfevents.{seconds:010}.{}.{process}", host()));
        // A second one within a second has another name.
        let names = (0..).map(|number| path.with_extension(format!("{process}.{number}")));
        let free = names.into_iter().find(|path| !path.exists()).expect("some number is free");
        let frames = Frames::create(&free).map_err(|cause| failed(&free, cause))?;
        let mut file = EventFile { path: free, frames };
        file.write(0, What::FileVersion("brain.Event:2".into()))?;
        // From the beginning it is everything that is forgotten.
        let next = if steps_done == 0 { 0 } else { steps_done + 1 };
        file.write(next, What::SessionLog(SessionLog::start()))?;
        Ok(file)
    }

    /// Writes a text under a name, as it is.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), EventFileError> {
        self.write(step, What::Summary(Summary { value: vec![Value::text(name, &verbatim(text))] }))
    }

    fn write(&mut self, step: u64, what: What) -> Result<(), EventFileError> {
        let event = Event { wall_time: now(), step: step as i64, what: Some(what) };
        let failed = |cause| EventFileError { path: self.path.clone(), cause };
        self.frames.write(&prost::Message::encode_to_vec(&event)).map_err(failed)
    }
}

impl Watcher for EventFile {
    fn row(&mut self, row: &Row) -> kernfusion_lm::Result<()> {
        self.add(row).map_err(|error| kernfusion_lm::Error::Watcher(Box::new(error)))
    }
}

impl EventFile {
    fn add(&mut self, row: &Row) -> Result<(), EventFileError> {
        let value = match row {
            Row::Step(report) => scalars(report),
            Row::Validation { val_loss, .. } => vec![Value::scalar("loss/validation", *val_loss)],
            Row::Sample { step, prompt, sample } => {
                let name = if prompt.is_empty() { "sample".into() } else { format!("sample/{prompt}") };
                return self.text(*step, &name, &format!("{prompt}{sample}"));
            }
        };
        self.write(row.step(), What::Summary(Summary { value }))
    }
}

/// The figures of a step; TensorBoard groups them by what stands before the stroke.
fn scalars(report: &StepReport) -> Vec<Value> {
    let StepReport { loss, gradient_norm, learning_rate, seconds, tokens_per_s, usage, .. } = *report;
    let figures = [
        ("loss/training", Some(f64::from(loss))),
        ("optimizer/learning_rate", Some(learning_rate)),
        ("optimizer/gradient_norm", gradient_norm.map(f64::from)),
        ("speed/tokens_per_s", Some(tokens_per_s)),
        ("speed/seconds", Some(seconds)),
        ("system/resident_mib", usage.resident_mib),
        ("system/peak_mib", usage.peak_mib),
        ("system/busy_cores", usage.busy_cores),
    ];
    figures.into_iter().filter_map(|(name, value)| Some(Value::scalar(name, value?))).collect()
}

/// TensorBoard shows texts as Markdown, in which indented lines stand as they are.
fn verbatim(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The name of the machine, in the letters of a file name.
fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    if name.is_empty() { "unknown".into() } else { name.chars().map(plain).collect() }
}
