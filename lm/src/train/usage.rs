//! What a run takes of the machine.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Memory and processor time of this process; `None` where the system does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Resident memory now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_mib: Option<f64>,
    /// The most there has been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_mib: Option<f64>,
    /// Cores that were busy on average since the step before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_cores: Option<f64>,
}

/// Measures from one step to the next.
pub(super) struct Meter {
    since: Option<(Instant, Duration)>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Meter { since: None }
    }

    /// The usage of a step that is over.
    pub(super) fn read(&mut self) -> Usage {
        let [resident_mib, peak_mib] = memory();
        let now = processor_time().map(|time| (Instant::now(), time));
        let busy_cores = self.since.zip(now).map(|((start, before), (end, after))| {
            after.saturating_sub(before).as_secs_f64() / (end - start).as_secs_f64().max(1e-9)
        });
        self.since = now;
        Usage { resident_mib, peak_mib, busy_cores }
    }
}

/// Resident memory now and at most in MiB, from Linux's `/proc`.
fn memory() -> [Option<f64>; 2] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kibibytes / 1024.0)
    })
}

/// The time that all threads of this process have had a processor.
#[cfg(unix)]
fn processor_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(not(unix))]
fn processor_time() -> Option<Duration> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_is_a_busy_core() {
        let mut meter = Meter::new();
        let first = meter.read();
        assert!(
            first.busy_cores.is_none()
                && first.resident_mib <= first.peak_mib
                && first.resident_mib > Some(1.0)
        );
        let spin = Instant::now();
        while spin.elapsed() < Duration::from_millis(40) {}
        // Other tests may run beside this one and add time; none can be missing.
        assert!(meter.read().busy_cores.unwrap() > 0.05);
    }
}
