//! How long compiling takes: a training step of some presets, with the number of microbatches chosen as a user gets it.
//!
//! `cargo bench --bench compile` measures those of the issue; `cargo bench --bench compile -- thesis gpt2-small:4` others, with their
//! batches. Each is compiled several times; what is shown is the fastest, with the mean processor time of one, which a busy machine changes
//! less.

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
        let before = processor_time();
        let runs = (0..RUNS).map(|_| measure(&step));
        let (wall, report) = runs.min_by_key(|(wall, _)| *wall).expect("some runs");
        let cpu = (processor_time() - before) / RUNS as f64;
        let passes: Duration = report.passes.iter().map(|pass| pass.time).sum();
        println!(
            "{program:<20} {:>8} {:>6.3} {:>6.3} {:>7.3} {:>7.3} {:>7.3} {:>7.3} {:>8}",
            report.memory.microbatches,
            wall.as_secs_f64(),
            cpu,
            passes.as_secs_f64(),
            report.fuse.as_secs_f64(),
            report.plan.as_secs_f64(),
            report.codegen.as_secs_f64(),
            report.kernels,
        );
    }
}

/// Compiles a step over states of its own: wall time, and what compiling says about it.
fn measure(step: &TrainStep) -> (Duration, CompileReport) {
    let start = Instant::now();
    let compiled = compile(&step.program.graph, &States::new(), &Target::cpu()).expect("the step compiles");
    (start.elapsed(), compiled.report().clone())
}

/// Seconds of processor time of all threads of this process, as Linux tells them; zero elsewhere.
fn processor_time() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in parentheses, fields 12 and 13 are ticks of a hundredth of a second.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
