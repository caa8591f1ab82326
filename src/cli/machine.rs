//! The machine that figures belong to.

use serde_json::{Value, json};

/// Processor, cores, memory and system.
pub(super) fn describe() -> Value {
    let information = |file: &str, name: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    json!({
        "cpu": information("/proc/cpuinfo", "model name"),
        "cores": cores,
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
