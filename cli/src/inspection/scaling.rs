//! What `kernfusion explain --ranks N --link …` predicts: a step of several ranks on paper (`kernfusion::scaling`), and its flags.

use crate::common::error::CliError;
use crate::common::machine;
use crate::common::screen::{Screen, grouped};
use crate::inspection::stages::Planned;
use kernfusion::compile::{Precision, Target};
use kernfusion::scaling::{Link, Machine, StepTime};
use kernfusion_codegen::Peaks;
use serde_json::{Value, json};

/// The share of a step's time that its floors are, as docs/benchmarks/xeon-tiles.md has it for steps of `thesis` on a processor with a tile unit: of products
/// of `bf16` on that unit a quarter.
fn usual_efficiency(precision: Precision, has_tiles: bool) -> f64 {
    if precision == Precision::Bf16 && has_tiles { 0.25 } else { 0.74 }
}

/// On what ranks run, and what connects them.
#[derive(clap::Args)]
pub(crate) struct ScenarioArgs {
    /// What connects ranks, for a prediction: bytes that each sends in a second, and what a message takes beside them, such as 25GB/s,5us
    #[arg(long, value_name = "RATE,TIME", requires = "ranks", value_parser = link)]
    link: Option<Link>,
    /// Threads of a rank, with which this machine's peaks are measured [default: one for each core]
    #[arg(long, value_name = "N", requires = "link", conflicts_with = "peak", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Instead of measuring: the rate of products in f32 and in bf16, such as 2TFLOP/s,8TFLOP/s; one rate stands for both
    #[arg(long, value_name = "RATE[,RATE]", requires_all = ["link", "bandwidth"], value_parser = peak)]
    peak: Option<[f64; 2]>,
    /// And the bandwidth of memory, such as 400GB/s
    #[arg(long, value_name = "RATE", requires = "peak", conflicts_with = "threads", value_parser = bandwidth)]
    bandwidth: Option<f64>,
    /// Share of a rank's time that the floors of its kernels are [default: as measured in docs/benchmarks/xeon-tiles.md, 0.74; 0.25 in bf16 on a tile
    /// unit, or at a stated rate above twice that of f32]
    #[arg(long, value_name = "X", requires = "link", value_parser = efficiency)]
    efficiency: Option<f64>,
}

impl ScenarioArgs {
    /// The scenario, if there is a link; peaks are measured now unless they are given.
    pub(crate) fn resolve(&self, precision: Precision) -> Result<Option<Scenario>, CliError> {
        let Some(link) = self.link else { return Ok(None) };
        let (peaks, measured, has_tiles) = match (self.peak, self.bandwidth) {
            (Some([f32_products, bf16_products]), Some(bandwidth)) => {
                let scalars = f32_products / 2.0;
                // Nothing that is trained multiplies bytes.
                let int8_products = bf16_products;
                let peaks = Peaks {
                    bandwidth,
                    reads: bandwidth,
                    f32_products,
                    bf16_products,
                    int8_products,
                    scalars,
                };
                // Vectors multiply twice as many numbers of half the size.
                (peaks, None, bf16_products > 2.0 * f32_products)
            }
            _ => {
                let threads = self.threads.map(usize::from);
                let target = threads.into_iter().fold(Target::cpu(), Target::threads);
                let has_tiles = target.instruction_set()?.has_tiles();
                (target.peaks()?, Some(target), has_tiles)
            }
        };
        let efficiency = self.efficiency.unwrap_or(usual_efficiency(precision, has_tiles));
        Ok(Some(Scenario { link, machine: Machine { peaks, efficiency }, measured }))
    }
}

/// What a prediction is for.
pub(crate) struct Scenario {
    link: Link,
    machine: Machine,
    /// Where peaks were measured, if they were.
    measured: Option<Target>,
}

/// The step of several ranks, on paper.
pub(crate) struct Prediction {
    scenario: Scenario,
    ranks: usize,
    /// Tokens of a step of all ranks.
    tokens: usize,
    step: StepTime,
    /// The step of one process with the batch of a rank.
    part: StepTime,
    /// The step of one process with the batch of all ranks.
    whole: StepTime,
}

impl Prediction {
    /// From the plans of a rank, and of one process with a rank's batch and with that of all.
    pub(crate) fn new(
        scenario: Scenario,
        (ranks, tokens): (usize, usize),
        rank: &Planned,
        [part, whole]: &[Planned; 2],
    ) -> Self {
        let [step, part, whole] = [rank, part, whole].map(|planned| {
            StepTime::new(&planned.runs().collect::<Vec<_>>(), &scenario.machine, &scenario.link)
        });
        Prediction { scenario, ranks, tokens, step, part, whole }
    }

    fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.step.seconds()
    }

    /// Against as many processes that each compute a rank's batch alone.
    fn weak_efficiency(&self) -> f64 {
        self.part.seconds() / self.step.seconds()
    }

    /// Against one process with the whole batch.
    fn strong_efficiency(&self) -> f64 {
        self.whole.seconds() / (self.ranks as f64 * self.step.seconds())
    }

    pub(crate) fn show(&self, screen: &mut Screen) {
        let Scenario { link, machine: Machine { peaks, efficiency }, measured } = &self.scenario;
        let StepTime { floors, compute, communication, collectives, exchanges, messages, bytes_sent, .. } =
            self.step;
        let whose = match measured {
            Some(target) => format!("measured here, {}", machine::place(target)),
            None => "as stated".into(),
        };
        let seconds = |seconds: f64| format!("{seconds:.4} s");
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let lines = [
            ("compute", seconds(compute), format!("floors of {floors:.4} s at {}", percent(*efficiency))),
            (
                "communication",
                seconds(communication),
                format!(
                    "{} collectives in {} exchanges, {} messages, {} B sent",
                    grouped(collectives as u64),
                    grouped(exchanges as u64),
                    grouped(messages as u64),
                    grouped(bytes_sent as u64)
                ),
            ),
            (
                "hidden",
                percent(self.step.hidden_share()),
                "of communication, behind the last microbatch".into(),
            ),
            ("step", seconds(self.step.seconds()), format!("{} tokens", grouped(self.tokens as u64))),
            ("tokens/s", grouped(self.tokens_per_s().round() as u64), "of all ranks".into()),
            (
                "efficiency",
                percent(self.weak_efficiency()),
                format!(
                    "of {} times one process with a rank's batch, {}",
                    self.ranks,
                    seconds(self.part.seconds())
                ),
            ),
            (
                "",
                percent(self.strong_efficiency()),
                format!(
                    "of {} times one process with the whole batch, {}",
                    self.ranks,
                    seconds(self.whole.seconds())
                ),
            ),
        ];
        let ranks = if self.ranks == 1 { "1 rank".into() } else { format!("{} ranks", self.ranks) };
        screen.line(format!("\nprediction for {ranks} (arithmetic, not a measurement):"));
        for (name, value, about) in lines {
            screen.line(format!("  {name:<14} {value:>14}  {about}"));
        }
        screen.line("assumed:");
        screen.line(format!(
            "  each rank has a machine of its own: {:.1} GB/s of memory, products {:.0} GFLOP/s in f32, {:.0} in bf16 ({whose})",
            peaks.bandwidth / 1e9,
            peaks.f32_products / 1e9,
            peaks.bf16_products / 1e9
        ));
        screen.line(format!("  the floors of its kernels are {} of their time", percent(*efficiency)));
        screen.line(format!(
            "  a message takes {} µs and its bytes at {} GB/s, one after another, whatever the other ranks send",
            link.latency * 1e6,
            link.bandwidth / 1e9
        ));
        screen.line("  what is exchanged beside a rank's last microbatch takes nothing from it, and no rank waits for a slower one");
    }

    pub(crate) fn json(&self) -> Value {
        let Scenario { link, machine: Machine { peaks, efficiency }, measured } = &self.scenario;
        let StepTime { floors, compute, communication, collectives, exchanges, messages, bytes_sent, .. } =
            self.step;
        json!({
            "machine": measured.as_ref().map(machine::describe),
            "threads": measured.as_ref().map(Target::thread_count),
            "bandwidth_bytes_per_s": peaks.bandwidth,
            "reads_bytes_per_s": peaks.reads,
            "f32_products_per_s": peaks.f32_products,
            "bf16_products_per_s": peaks.bf16_products,
            "share_of_floors": efficiency,
            "link_bytes_per_s": link.bandwidth, "link_latency_s": link.latency,
            "collectives": collectives, "exchanges": exchanges, "messages": messages, "bytes_sent": bytes_sent,
            "floor_s": floors, "compute_s": compute, "communication_s": communication,
            "hidden_share": self.step.hidden_share(),
            "step_s": self.step.seconds(),
            "tokens": self.tokens, "tokens_per_s": self.tokens_per_s(),
            "efficiency": self.weak_efficiency(),
            "efficiency_whole_batch": self.strong_efficiency(),
        })
    }
}

const BYTES: [(&str, f64); 8] = [
    ("B/s", 1.0),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("kbit/s", 1e3 / 8.0),
    ("Mbit/s", 1e6 / 8.0),
    ("Gbit/s", 1e9 / 8.0),
];
const OPERATIONS: [(&str, f64); 3] = [("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)];
const TIMES: [(&str, f64); 5] = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];

/// `25GB/s,5us`.
pub(crate) fn link(text: &str) -> Result<Link, String> {
    let (bandwidth, latency) = text.split_once(',').ok_or(
        "no link: write the rate and the time of a message with a comma between them, such as 25GB/s,5us",
    )?;
    Ok(Link { bandwidth: rate(bandwidth, &BYTES)?, latency: quantity(latency, &TIMES)? })
}

/// `2TFLOP/s` of all products, or `2TFLOP/s,8TFLOP/s` in `f32` and in `bf16`.
fn peak(text: &str) -> Result<[f64; 2], String> {
    let (full, narrow) = text.split_once(',').unwrap_or((text, text));
    Ok([rate(full, &OPERATIONS)?, rate(narrow, &OPERATIONS)?])
}

/// `400GB/s`.
fn bandwidth(text: &str) -> Result<f64, String> {
    rate(text, &BYTES)
}

/// A share, above 0 and at most 1.
fn efficiency(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "no share above 0 and at most 1".into())
}

/// A quantity above zero.
fn rate(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let rate = quantity(text, units)?;
    if rate > 0.0 { Ok(rate) } else { Err(format!("\"{text}\" is no rate above 0")) }
}

/// A number, 0 or above, with one of these units.
fn quantity(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = units.iter().find(|(name, _)| *name == unit.trim());
    let value = number.parse::<f64>().ok().zip(unit).map(|(number, (_, size))| number * size);
    value.filter(|value| value.is_finite()).ok_or_else(|| {
        let names: Vec<_> = units.iter().map(|(name, _)| *name).collect();
        format!("\"{text}\" is no number with one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_rates_have_units() {
        assert_eq!(link("25GB/s,5us"), Ok(Link { bandwidth: 25e9, latency: 5.0 * 1e-6 }));
        assert_eq!(link("1Gbit/s,0s"), Ok(Link { bandwidth: 125e6, latency: 0.0 }));
        assert_eq!(link("1.5 MB/s,250µs"), Ok(Link { bandwidth: 1.5e6, latency: 250.0 * 1e-6 }));
        assert_eq!(peak("2TFLOP/s"), Ok([2e12; 2]));
        assert_eq!(peak("2TFLOP/s,800GFLOP/s"), Ok([2e12, 800e9]));
        assert_eq!(bandwidth("400GB/s"), Ok(400e9));
    }

    #[test]
    fn what_is_no_link_says_why() {
        let cases = [
            ("25GB/s", "such as 25GB/s,5us"),
            ("25GB/s,5", "\"5\" is no number with one of ns, us, µs, ms, s"),
            ("25,5us", "\"25\" is no number with one of B/s, kB/s"),
            // A bit is not a byte.
            ("25Gb/s,5us", "\"25Gb/s\" is no number"),
            ("0GB/s,5us", "\"0GB/s\" is no rate above 0"),
            ("-1GB/s,5us", "\"-1GB/s\" is no number"),
            ("1..2GB/s,5us", "\"1..2GB/s\" is no number"),
            ("25GB/s,5us,6", "\"5us,6\" is no number"),
            ("GB/s,us", "\"GB/s\" is no number"),
        ];
        for (text, expected) in cases {
            let error = link(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(peak("2TB/s").is_err() && bandwidth("2TFLOP/s").is_err());
        assert!(efficiency("0").is_err() && efficiency("1.1").is_err() && efficiency("NaN").is_err());
    }
}
