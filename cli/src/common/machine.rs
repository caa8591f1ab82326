//! The machine that figures belong to.

use crate::common::model::TargetArgs;
use crate::common::screen::{grouped, mib};
use crate::report::Description;
use kernfusion::compile::Target;
use kernfusion_lm::record::Record;
use kernfusion_lm::train::Trainer;
use serde_json::{Value, json};

/// What programs of a target run on, in a few words.
pub(crate) fn place(target: &Target) -> String {
    target.gpu_name().unwrap_or_else(|| match target.instruction_set() {
        Ok(isa) => format!("{} threads, {isa}", target.thread_count()),
        // Compiling says why.
        Err(_) => format!("{} threads", target.thread_count()),
    })
}

/// Processor, cores, memory and system; and the GPU, if the target is one.
pub(crate) fn describe(target: &Target) -> Value {
    let information = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "cpu": information("/proc/cpuinfo", "model name"),
        "cores": cores,
        "instruction_set": target.instruction_set().ok().map(|isa| isa.to_string()),
        "gpu": target.gpu_name(),
        "memory": information("/proc/meminfo", "MemTotal"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "kernfusion": env!("CARGO_PKG_VERSION"),
    })
}

/// A run and what it runs on.
pub(crate) fn describe_run(trainer: &Trainer, args: &TargetArgs, target: &Target) -> Description {
    let report = trainer.program().report();
    let microbatches = report.memory.microbatches;
    let batch =
        if microbatches > 1 { format!("the batch in {microbatches} microbatches, ") } else { String::new() };
    let (machine, place) = (describe(target), place(target));
    let processor = machine["cpu"].as_str().filter(|_| report.device_bytes == 0);
    let Record { config, settings, text, .. } = trainer.record().clone();
    Description {
        config,
        settings,
        text,
        place: processor.map_or(place.clone(), |processor| format!("{place}, {processor}")),
        machine,
        products: args.products(),
        compile_s: trainer.compile_time().as_secs_f64(),
        step: format!(
            "{batch}{} kernels, {} MiB moved",
            grouped(report.kernels as u64),
            grouped(mib(report.bytes_moved) as u64)
        ),
    }
}

/// The most bytes of memory that this process has had resident, where the system tells.
pub(crate) fn peak_memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}
