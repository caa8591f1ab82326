//! `kernfusion selftest --programs`: random programs, with what must hold of each.

use super::Outcome;
use super::destination::write_derived;
use super::error::CliError;
use super::screen::{Screen, grouped, progress};
use kernfusion::fuzz::{Program, Violation, checks_of, judge, program, shrink};
use kernfusion::tensor_file;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Judges the programs of so many seeds.
pub(super) fn run(
    first: u64,
    count: u64,
    json: Option<&Path>,
    keep: Option<&Path>,
    screen: &mut Screen,
) -> Outcome {
    let start = Instant::now();
    let bar = progress(count, "{pos}/{len} {per_sec} {msg}");
    // A panic is a finding; its message is in it.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let mut findings = Vec::new();
    for seed in (0..count).map(|number| first.wrapping_add(number)) {
        bar.set_message(format!("seed {seed}"));
        let program = program(seed);
        if let Some(violation) = judge(&program, &checks_of(seed)) {
            let (least, inputs) = shrink(&program, &violation.check);
            bar.suspend(|| screen.line(format!("seed {seed}, {}: {}", violation.check, violation.what)));
            if let Some(directory) = keep {
                kept(directory, seed, &violation, &least, inputs)?;
            }
            findings.push(described(seed, &violation, &least, inputs));
        }
        bar.inc(1);
    }
    std::panic::set_hook(hook);
    bar.finish_and_clear();
    let seconds = start.elapsed().as_secs_f64();
    let rate = count as f64 / seconds;
    screen.line(format!(
        "{} programs in {seconds:.1} s, {rate:.1} programs/s, {} findings",
        grouped(count),
        findings.len()
    ));
    let found = !findings.is_empty();
    if let Some(path) = json {
        let all = json!({"programs": count, "first_seed": first, "seconds": seconds, "findings": findings});
        write_derived(path, &format!("{all:#}\n"), &[])?;
    }
    Ok(if found { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn described(seed: u64, violation: &Violation, least: &Program, inputs: Option<u64>) -> Value {
    json!({
        "seed": seed,
        "check": violation.check.to_string(),
        "what": violation.what,
        "inputs_seed": inputs,
        "program": least.graph.to_string(),
    })
}

/// Writes the smallest program that shows a finding, and its inputs if they are not those of a seed.
fn kept(
    directory: &Path,
    seed: u64,
    violation: &Violation,
    least: &Program,
    inputs: Option<u64>,
) -> Result<(), CliError> {
    let cannot = |cause| CliError::Write { path: directory.into(), cause };
    std::fs::create_dir_all(directory).map_err(cannot)?;
    let given = match inputs {
        Some(inputs) => format!("inputs of seed {inputs}"),
        None => format!("inputs in {seed}.safetensors"),
    };
    let text = format!("# seed {seed}, {}: {}\n# {given}\n{}", violation.check, violation.what, least.graph);
    write_derived(&directory.join(format!("{seed}.kir")), &text, &[])?;
    if inputs.is_none() {
        tensor_file::write(&directory.join(format!("{seed}.safetensors")), &least.inputs)?;
    }
    Ok(())
}
