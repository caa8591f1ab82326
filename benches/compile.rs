//! How long compiling takes: a training step of some presets, with the number of microbatches chosen as a user gets it.
//!
//! `cargo bench --bench compile` measures those of the issue; `cargo bench --bench compile -- thesis gpt2-small:4` others, with their
//! batches. Each is compiled several times; what is shown is the fastest, with the processor time of the thread that compiles, which a busy
//! machine changes less.

use kernfusion::compile::{CompileReport, Target, compile};
use kernfusion::models::presets;
use kernfusion::optim::{Optimizer, TrainStep};
use kernfusion_codegen::States;
use std::time::{Duration, Instant};

/// How often each program is compiled.
const RUNS: usize = 7;

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = if wanted.is_empty() { vec!["thesis".into(), "gpt2-small:4".into()] } else { wanted };
    println!("program               batches wall s  CPU s  passes    fuse    plan    code  kernels");
    for program in &wanted {
        let (name, batch) =
            program.split_once(':').map_or((&**program, None), |(name, batch)| (name, Some(batch)));
        let preset = presets().into_iter().find(|preset| preset.name == name).expect("a preset's name");
        let batch = batch.map_or(preset.batch, |batch| batch.parse().expect("a number of windows"));
        let step =
            preset.config.train_step(batch, &Optimizer::adamw(1e-3), None).expect("the preset is valid");
        let runs: Vec<_> = (0..RUNS).map(|_| measure(&step)).collect();
        let (wall, report) = runs
            .iter()
            .map(|(wall, _, report)| (wall, report))
            .min_by_key(|(wall, _)| **wall)
            .expect("some runs");
        let cpu = runs.iter().map(|(_, cpu, _)| *cpu).min().expect("some runs");
        let passes: Duration = report.passes.iter().map(|pass| pass.time).sum();
        println!(
            "{program:<20} {:>8} {:>6.3} {:>6.3} {:>7.3} {:>7.3} {:>7.3} {:>7.3} {:>8}",
            report.memory.microbatches,
            wall.as_secs_f64(),
            cpu.as_secs_f64(),
            passes.as_secs_f64(),
            report.fuse.as_secs_f64(),
            report.plan.as_secs_f64(),
            report.codegen.as_secs_f64(),
            report.kernels,
        );
    }
}

/// Compiles a step over states of its own: wall time, processor time, and what compiling says about it.
fn measure(step: &TrainStep) -> (Duration, Duration, CompileReport) {
    let (start, cpu) = (Instant::now(), thread_time());
    let compiled = compile(&step.program.graph, &States::new(), &Target::cpu()).expect("the step compiles");
    (start.elapsed(), thread_time().saturating_sub(cpu), compiled.report().clone())
}

/// Processor time of this thread, as Linux tells it; zero elsewhere.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|nanoseconds| nanoseconds.parse().ok()).unwrap_or(0))
}
