//! The machine that figures belong to.

use kernfusion::compile::Target;
use serde_json::{Value, json};

/// What programs of a target run on, in a few words.
pub(super) fn place(target: &Target) -> String {
    target.gpu_name().unwrap_or_else(|| format!("{} threads", target.thread_count()))
}

/// Processor, cores, memory and system; and the GPU, if the target is one.
pub(super) fn describe(target: &Target) -> Value {
    let information = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "cpu": information("/proc/cpuinfo", "model name"),
        "cores": cores,
        "gpu": target.gpu_name(),
        "memory": information("/proc/meminfo", "MemTotal"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "kernfusion": env!("CARGO_PKG_VERSION"),
    })
}

/// The most bytes of memory that this process has had resident, where the system tells.
pub(super) fn peak_memory() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}
