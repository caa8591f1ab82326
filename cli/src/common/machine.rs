//! The machine that figures belong to.

use crate::common::model::TargetArgs;
use crate::common::screen::{counted, grouped, mib};
use crate::report::Description;
use kernfusion::compile::Target;
use kernfusion_lm::record::Record;
use kernfusion_lm::train::Trainer;
use serde_json::{Value, json};

/// What programs of a target run on, in a few words.
pub(crate) fn place(target: &Target) -> String {
    target.gpu_name().unwrap_or_else(|| match target.instruction_set() {
        Ok(isa) => format!("{}, {isa}", counted(target.thread_count(), "thread")),
        // Compiling says why.
        Err(_) => counted(target.thread_count(), "thread"),
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

/// The architecture of a GPU as a flag says it: `sm_80` or `compute_90a`, of an A100 or later.
pub(crate) fn architecture(text: &str) -> Result<String, String> {
    let digits = ["sm_", "compute_"].iter().find_map(|kind| text.strip_prefix(kind));
    let number = digits.map(|digits| digits.strip_suffix(['a', 'f']).unwrap_or(digits));
    match number.and_then(|number| number.parse::<u32>().ok()) {
        Some(80..=999) => Ok(text.into()),
        _ => Err("an architecture is sm_80, sm_90a or compute_90a, say: 80 or more, that of an A100".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::architecture;

    #[test]
    fn architectures_are_those_of_cards_with_asynchronous_copies() {
        for text in ["sm_80", "sm_90a", "compute_90", "sm_100f", "sm_120a"] {
            assert_eq!(architecture(text).as_deref(), Ok(text));
        }
        for text in ["sm_9", "sm_75", "90", "sm90", "sm_", "sm_90b", "sm_a", "compute_"] {
            assert!(architecture(text).is_err(), "{text}");
        }
    }
}
