//! Steps in turn, and a row with the keys of `kernfusion bench --json`.

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
pub(crate) struct Timing {
    /// Steps that are timed
    #[arg(long, default_value_t = 5)]
    steps: usize,
    /// Steps before them, not timed
    #[arg(long, default_value_t = 1)]
    warmup: usize,
    /// File to write; without it the row goes to standard output
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Default, Serialize)]
pub(crate) struct Row {
    pub(crate) mode: &'static str,
    pub(crate) preset: &'static str,
    pub(crate) work: &'static str,
    pub(crate) dtype: &'static str,
    pub(crate) device: &'static str,
    pub(crate) threads: usize,
    /// Tokens of a step.
    #[serde(skip)]
    pub(crate) tokens: usize,
    pub(crate) steps: usize,
    pub(crate) median_step_s: f64,
    pub(crate) fastest_step_s: f64,
    pub(crate) slowest_step_s: f64,
    pub(crate) tokens_per_s: f64,
    pub(crate) first_step_s: f64,
    pub(crate) peak_rss_mib: Option<f64>,
    pub(crate) loss_first: f32,
    pub(crate) loss_last: f32,
}

impl Row {
    pub(crate) fn on_cpu() -> Row {
        Row { device: "cpu", ..Row::default() }
    }
}

#[derive(Serialize)]
struct Document {
    results: [Row; 1],
}

impl Timing {
    pub(crate) fn all_steps(&self) -> usize {
        self.warmup + self.steps.max(1)
    }

    /// Runs all steps, each of which gives a number that depends on all of its work.
    pub(crate) fn measure(&self, row: Row, mut step: impl FnMut(usize) -> Result<f32>) -> Result<Row> {
        let (mut seconds, mut values) = (Vec::new(), Vec::new());
        for number in 0..self.all_steps() {
            let start = Instant::now();
            values.push(step(number)?);
            seconds.push(start.elapsed().as_secs_f64());
        }
        let mut timed = seconds[self.warmup..].to_vec();
        timed.sort_by(f64::total_cmp);
        let median = (timed[(timed.len() - 1) / 2] + timed[timed.len() / 2]) / 2.0;
        Ok(Row {
            steps: timed.len(),
            median_step_s: median,
            fastest_step_s: timed[0],
            slowest_step_s: timed[timed.len() - 1],
            tokens_per_s: row.tokens as f64 / median,
            first_step_s: seconds[0],
            peak_rss_mib: peak_rss_mib(),
            loss_first: values[0],
            loss_last: values[values.len() - 1],
            ..row
        })
    }

    pub(crate) fn write(&self, row: Row) -> Result<()> {
        let document = serde_json::to_string_pretty(&Document { results: [row] })? + "\n";
        match &self.json {
            Some(path) => {
                std::fs::write(path, document).with_context(|| format!("writing {}", path.display()))
            }
            None => {
                print!("{document}");
                Ok(())
            }
        }
    }
}

/// The most memory that the process has had resident; none off Linux.
fn peak_rss_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}
