//! The page of a measurement: compiled, eager and peers beside each other.

use super::bars::{Bar, bars};
use super::description::memory;
use super::page::{page, section, table};
use super::plot::{grouped, median, number};
use kernfusion_lm::jsonl::RowsError;
use kernfusion_lm::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// A file of `bench --json`, or of a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// The machine, with the field `cpu`.
    #[serde(default)]
    pub machine: Value,
    /// One for each mode.
    pub results: Vec<Measurement>,
}

/// What was measured of one mode; what a file leaves out was not measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// `compiled` and `eager` are ours; peers have names of their own.
    pub mode: String,
    /// The model.
    pub preset: String,
    /// Training, forward, prefill or decode.
    pub work: String,
    /// Of products.
    pub dtype: String,
    /// Where it ran.
    #[serde(default)]
    pub device: String,
    /// How many threads.
    #[serde(default)]
    pub threads: usize,
    /// Timed steps.
    #[serde(default)]
    pub steps: u64,
    /// Seconds of a step.
    pub median_step_s: f64,
    /// The quickest step.
    #[serde(default)]
    pub fastest_step_s: Option<f64>,
    /// The slowest step.
    #[serde(default)]
    pub slowest_step_s: Option<f64>,
    /// Tokens of a step by its median time.
    pub tokens_per_s: f64,
    /// Bytes that kernels read and write in a step.
    #[serde(default)]
    pub bytes_moved_mib: Option<f64>,
    /// The most memory of the process.
    #[serde(default)]
    pub peak_rss_mib: Option<f64>,
    /// The most memory of a GPU.
    #[serde(default)]
    pub peak_device_mib: Option<f64>,
    /// glibc's allocator as it is, or tuned.
    #[serde(default)]
    pub allocator: Option<String>,
}

impl Measurements {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is no such file, or has no results.
    pub fn read(path: &Path) -> Result<Self> {
        let read = kernfusion::input_file::read_text(path);
        let text = read.map_err(|cause| RowsError::Read { path: path.into(), cause })?;
        let invalid =
            |error| Error::Configuration(format!("{} is not of bench --json: {error}", path.display()));
        let all: Self = serde_json::from_str(&text).map_err(invalid)?;
        match all.results.is_empty() {
            true => Err(Error::Configuration(format!("{} has no results", path.display()))),
            false => Ok(all),
        }
    }
}

/// A page with bars of time, memory and bytes. Our measurement comes first; the same mode in several files, rounds of a
/// comparison, is one bar.
pub fn bench_page(all: &[Measurements]) -> String {
    let groups = groups(all);
    let first = &groups[0].rows[0];
    let (title, machine) = (format!("{} {}", first.preset, first.work), &all[0].machine);
    let mut lead = format!("<p>{}.", super::page::escaped(&where_measured(machine, first)));
    if groups.len() > 1 {
        lead += " Each bar is a median; the line across it reaches from the quickest to the slowest step, where that is known.";
    }
    lead += "</p>\n";
    let warnings: String = warnings(all, &groups)
        .iter()
        .map(|warning| format!("<p class=\"warning\">{}</p>\n", super::page::escaped(warning)))
        .collect();
    let figures = [
        figure(&groups, "Time of a step", "shorter is better", seconds, |group| {
            (Some(group.seconds()), group.spread())
        }),
        figure(&groups, "Peak memory", "each in a process of its own", mib, |group| (group.peak(), None)),
        figure(&groups, "Bytes that kernels move in a step", "as planned; peers do not say", mib, |group| {
            (group.moved(), None)
        }),
    ];
    let sections = [lead, warnings, figures.concat(), section("Figures", &figures_table(&groups))];
    page(&title, &sections)
}

/// A bar for each group; `measured` has its value and its spread.
fn figure(
    groups: &[Group<'_>],
    title: &str,
    note: &str,
    text: fn(f64) -> String,
    measured: impl Fn(&Group<'_>) -> (Option<f64>, Option<[f64; 2]>),
) -> String {
    let bar = |group: &Group<'_>| {
        let (value, spread) = measured(group);
        Bar { name: group.name(), class: group.class(), value, spread }
    };
    bars(title, note, &groups.iter().map(bar).collect::<Vec<_>>(), text)
}

/// The rows of one mode, number type and allocator.
struct Group<'a> {
    rows: Vec<&'a Measurement>,
    ours: bool,
    /// Whether names must say type and allocator to be told apart.
    full: bool,
}

fn groups(all: &[Measurements]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let key =
        |row: &Measurement| (row.mode.clone(), row.dtype.clone(), row.allocator.clone(), row.device.clone());
    for row in all.iter().flat_map(|file| &file.results) {
        match groups.iter_mut().find(|group| key(group.rows[0]) == key(row)) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { rows: vec![row], ours: is_ours(&row.mode), full: false }),
        }
    }
    let types: BTreeSet<_> = groups.iter().map(|group| &group.rows[0].dtype).collect();
    let allocators: BTreeSet<_> =
        groups.iter().filter_map(|group| group.rows[0].allocator.as_ref()).collect();
    let full = types.len() > 1 || allocators.len() > 1;
    groups.iter_mut().for_each(|group| group.full = full);
    groups
}

fn is_ours(mode: &str) -> bool {
    matches!(mode, "compiled" | "eager")
}

impl Group<'_> {
    fn name(&self) -> String {
        let Measurement { mode, dtype, allocator, .. } = self.rows[0];
        let name = if self.ours { format!("Kernfusion, {mode}") } else { mode.replace('-', " ") };
        let kind = [Some(dtype.as_str()), allocator.as_deref().filter(|it| *it != "default")];
        match self.full {
            true => format!("{name}, {}", kind.into_iter().flatten().collect::<Vec<_>>().join(", ")),
            false => name,
        }
    }

    fn class(&self) -> &'static str {
        match (self.ours, self.rows[0].mode.as_str()) {
            (true, "compiled") => "ours",
            (true, _) => "faint",
            (false, _) => "reference",
        }
    }

    fn median(&self, figure: impl Fn(&Measurement) -> Option<f64>) -> Option<f64> {
        let known: Vec<_> = self.rows.iter().filter_map(|row| figure(row)).collect();
        (!known.is_empty()).then(|| median(&known))
    }

    fn seconds(&self) -> f64 {
        self.median(|row| Some(row.median_step_s)).unwrap_or(f64::NAN)
    }

    /// Of all rounds.
    fn spread(&self) -> Option<[f64; 2]> {
        let ends = self
            .rows
            .iter()
            .flat_map(|row| [row.fastest_step_s, row.slowest_step_s, Some(row.median_step_s)]);
        let ends = || ends.clone().flatten();
        Some([ends().fold(f64::INFINITY, f64::min), ends().fold(0.0, f64::max)])
    }

    fn peak(&self) -> Option<f64> {
        self.median(|row| row.peak_device_mib.or(row.peak_rss_mib))
    }

    fn moved(&self) -> Option<f64> {
        self.median(|row| row.bytes_moved_mib)
    }
}

fn where_measured(machine: &Value, row: &Measurement) -> String {
    let part = |name: &str| machine[name].as_str().map(String::from);
    let threads = (row.threads > 0 && machine["gpu"].is_null()).then(|| format!("{} threads", row.threads));
    let memory = part("memory").map(|text| format!("{} of memory", memory(&text)));
    let parts =
        [part("gpu"), part("cpu"), threads, memory, part("os"), Some(format!("{} products", row.dtype))];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What makes the bars no comparison of the same work.
fn warnings(all: &[Measurements], groups: &[Group<'_>]) -> Vec<String> {
    let rows = || groups.iter().flat_map(|group| &group.rows);
    let different = |name: &str, field: &dyn Fn(&Measurement) -> String| {
        let mut values: Vec<_> = rows().map(|row| field(row)).filter(|value| !value.is_empty()).collect();
        values.sort();
        values.dedup();
        (values.len() > 1).then(|| format!("Not the same {name}: {}.", values.join(", ")))
    };
    let mut warnings: Vec<_> = [
        different("model", &|row| row.preset.clone()),
        different("work", &|row| row.work.clone()),
        different("device", &|row| row.device.clone()),
        different("number of threads", &|row| row.threads.to_string()),
        // The product of two rounded figures is only nearly whole.
        different("number of tokens in a step", &|row| {
            grouped((row.tokens_per_s * row.median_step_s).round())
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut processors: Vec<_> = all.iter().filter_map(|file| file.machine["cpu"].as_str()).collect();
    processors.sort_unstable();
    processors.dedup();
    if processors.len() > 1 {
        warnings.push(format!("Not the same machine: {}.", processors.join(", ")));
    }
    warnings
}

fn figures_table(groups: &[Group<'_>]) -> String {
    let base = groups[0].seconds();
    let shown = |value: Option<f64>, text: &dyn Fn(f64) -> String| value.map_or("–".into(), text);
    let rows = groups.iter().map(|group| {
        let [low, high] = group.spread().unwrap_or([f64::NAN; 2]);
        vec![
            group.name(),
            seconds(group.seconds()),
            if low < high { format!("{} – {}", seconds(low), seconds(high)) } else { "–".into() },
            number(group.median(|row| Some(row.tokens_per_s)).unwrap_or(0.0).round()),
            format!("{:.2} ×", group.seconds() / base),
            shown(group.peak(), &mib),
            shown(group.moved(), &mib),
        ]
    });
    let head = [
        "",
        "median step",
        "quickest – slowest",
        "tokens/s",
        "time beside the first",
        "peak memory",
        "moved",
    ];
    // A figure stays with its unit.
    let joined = |row: Vec<String>| {
        row.into_iter()
            .enumerate()
            .map(|(column, cell)| if column > 0 { cell.replace(' ', "\u{a0}") } else { cell })
            .collect()
    };
    table(&head, &rows.map(joined).collect::<Vec<_>>())
}

fn mib(mib: f64) -> String {
    if mib < 10.0 { format!("{mib:.2} MiB") } else { format!("{} MiB", grouped(mib)) }
}

/// Three digits that count, in the unit that suits them.
fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        1.0.. => (seconds, "s"),
        1e-3.. => (1e3 * seconds, "ms"),
        _ => (1e6 * seconds, "µs"),
    };
    let digits = 2i32.saturating_sub(value.log10().floor() as i32).clamp(0, 2) as usize;
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn file(mode: &str, seconds: f64, more: Value) -> Measurements {
        let mut row = json!({
            "mode": mode, "preset": "tiny", "work": "train", "dtype": "f32", "device": "cpu", "threads": 2, "steps": 3,
            "median_step_s": seconds, "tokens_per_s": 100.0 / seconds,
        });
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({"machine": {"cpu": "a <processor>"}, "results": [row]})).unwrap()
    }

    #[test]
    fn strange_times_are_drawn_and_no_results_refused() {
        let read = |name: &str| Measurements::read(&Path::new("../tests/fixtures/bad_input").join(name));
        let page = bench_page(&[read("bench_below_zero.json").unwrap()]);
        assert!(!page.contains("NaN"), "{page}");
        assert_eq!([0.0, f64::INFINITY].map(seconds), ["0.00 µs", "inf s"]);
        let message = read("bench_no_results.json").unwrap_err().to_string();
        assert!(message.ends_with("bench_no_results.json has no results"), "{message}");
    }

    #[test]
    fn rounds_are_one_bar_with_their_spread() {
        let ours = file(
            "compiled",
            0.5,
            json!({"fastest_step_s": 0.25, "slowest_step_s": 1.0, "bytes_moved_mib": 2048.0}),
        );
        let peers = [1.0, 3.0, 2.0]
            .map(|seconds| file("torch-eager", seconds, json!({"peak_rss_mib": 100.0, "torch": "2"})));
        let page = bench_page(&[vec![ours], peers.to_vec()].concat()).replace('\u{a0}', " ");
        for part in [
            "<h1>tiny train</h1>",
            "a &lt;processor&gt;, 2 threads, f32 products",
            "Kernfusion, compiled",
            "<td>torch eager</td><td>2.00 s</td><td>1.00 s – 3.00 s</td><td>50</td><td>4.00 ×</td><td>100 MiB</td><td>–</td>",
            "<td>500 ms</td><td>250 ms – 1.00 s</td>",
            "2,048 MiB",
            "not measured",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(
            !page.contains("class=\"warning\"") && !page.contains("NaN") && !page.contains("http"),
            "{page}"
        );
    }

    #[test]
    fn what_is_no_comparison_is_said() {
        let other = file("torch-eager", 1.0, json!({"dtype": "bf16", "threads": 4, "preset": "thesis"}));
        let page = bench_page(&[file("compiled", 0.5, json!({})), other]);
        for part in [
            "Not the same model: thesis, tiny.",
            "threads: 2, 4.",
            "torch eager, bf16",
            "Kernfusion, compiled, f32",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
