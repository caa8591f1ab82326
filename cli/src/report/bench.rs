//! The page of a measurement: compiled, eager and peers beside each other.

use super::bars::{Bar, bars};
use super::description::memory;
use super::page::{page, section, table};
use super::plot::{counted, grouped, median, number};
use kernfusion_lm::jsonl::RowsError;
use kernfusion_lm::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A file of `bench --json`, or of a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// The machine, with the field `cpu`.
    #[serde(default)]
    pub machine: Value,
    /// One for each mode.
    pub results: Vec<Measurement>,
    /// The file that they were read from; none: they are of this run.
    #[serde(skip)]
    pub source: Option<PathBuf>,
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
    /// Tokens of a step by its median time; a program of a file does not say what tokens are.
    #[serde(default)]
    pub tokens_per_s: Option<f64>,
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
            false => Ok(Measurements { source: Some(path.into()), ..all }),
        }
    }
}

/// A page with bars of time, memory and bytes. Our measurement comes first. What a peer took for the same work in several files, rounds of
/// a comparison, is one bar; our own results of a file are never taken for those of this run.
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

/// The rows of one mode and one work, in one number type and with one allocator.
struct Group<'a> {
    rows: Vec<&'a Measurement>,
    ours: bool,
    /// Of our own results, the file that they are of; none: they are of this run.
    source: Option<&'a Path>,
    /// What names must say to be told apart.
    more: Vec<String>,
}

fn groups(all: &[Measurements]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let rows = all.iter().flat_map(|file| file.results.iter().map(|row| (file.source.as_deref(), row)));
    for (source, row) in rows {
        let ours = is_ours(&row.mode);
        let source = source.filter(|_| ours);
        match groups.iter_mut().find(|group| group.source == source && is_round(group.rows[0], row)) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { rows: vec![row], ours, source, more: vec![] }),
        }
    }
    let names = told_apart(&groups);
    groups.iter_mut().zip(names).for_each(|(group, more)| group.more = more);
    groups
}

/// Whether two rows are rounds of one measurement.
fn is_round(a: &Measurement, b: &Measurement) -> bool {
    let key = |row: &Measurement| {
        let Measurement { mode, preset, work, dtype, allocator, device, threads, .. } = row.clone();
        (mode, preset, work, dtype, allocator, device, threads)
    };
    // The product of two rounded figures is only nearly whole.
    let is_near = match (a.tokens(), b.tokens()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-3 * a.abs().max(b.abs()),
        (a, b) => a.is_none() == b.is_none(),
    };
    key(a) == key(b) && is_near
}

/// For each group what differs between groups, so that no two of them have the same name.
fn told_apart(groups: &[Group<'_>]) -> Vec<Vec<String>> {
    let source = |group: &Group<'_>| {
        let path = group.source?;
        let mut others = groups.iter().filter_map(|other| other.source).filter(|other| *other != path);
        let is_alone = others.all(|other| other.file_name() != path.file_name());
        let name = if is_alone { Path::new(path.file_name()?) } else { path };
        Some(name.display().to_string())
    };
    let allocator = |row: &Measurement| row.allocator.clone().filter(|name| name != "default");
    // Products and the allocator are said together.
    let kinds: BTreeSet<_> =
        groups.iter().map(|group| (&group.rows[0].dtype, &group.rows[0].allocator)).collect();
    let differing = |text: &dyn Fn(&Measurement) -> Option<String>| -> Vec<Option<String>> {
        let texts: Vec<_> = groups.iter().map(|group| text(group.rows[0])).collect();
        let is_one = texts.windows(2).all(|pair| pair[0] == pair[1]);
        if is_one { vec![None; texts.len()] } else { texts }
    };
    let columns = [
        groups.iter().map(source).collect(),
        differing(&|row| Some(row.preset.clone())),
        differing(&|row| Some(row.work.clone())),
        differing(&|row| Some(row.dtype.clone()).filter(|_| kinds.len() > 1)),
        differing(&allocator),
        differing(&|row| Some(row.device.clone()).filter(|name| !name.is_empty())),
        differing(&|row| (row.threads > 0).then(|| counted(row.threads, "thread"))),
        differing(&|row| row.tokens().map(|tokens| format!("{} tokens", grouped(tokens.round())))),
    ];
    (0..groups.len()).map(|at| columns.iter().filter_map(|column| column[at].clone()).collect()).collect()
}

fn is_ours(mode: &str) -> bool {
    matches!(mode, "compiled" | "eager")
}

impl Measurement {
    /// Of a step.
    fn tokens(&self) -> Option<f64> {
        self.tokens_per_s.map(|rate| rate * self.median_step_s)
    }
}

impl Group<'_> {
    fn name(&self) -> String {
        let mode = &self.rows[0].mode;
        let name = if self.ours { format!("Kernfusion, {mode}") } else { mode.replace('-', " ") };
        std::iter::once(&name).chain(&self.more).cloned().collect::<Vec<_>>().join(", ")
    }

    fn class(&self) -> &'static str {
        match (self.ours && self.source.is_none(), self.rows[0].mode.as_str()) {
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
    let threads = (row.threads > 0 && machine["gpu"].is_null()).then(|| counted(row.threads, "thread"));
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
        different("number of tokens in a step", &|row| {
            row.tokens().map_or_else(String::new, |tokens| grouped(tokens.round()))
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
            shown(group.median(|row| row.tokens_per_s), &|rate| number(rate.round())),
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
            "torch eager, thesis, bf16, 4 threads",
            "Kernfusion, compiled, tiny, f32, 2 threads",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn results_of_other_work_are_not_averaged() {
        let names = |files: &[Measurements]| groups(files).iter().map(Group::name).collect::<Vec<_>>();
        let ours = file("compiled", 0.5, json!({}));
        for (more, name) in [
            (json!({"preset": "thesis"}), "thesis"),
            (json!({"work": "decode"}), "decode"),
            (json!({"threads": 1}), "1 thread"),
            (json!({"tokens_per_s": 50.0}), "50 tokens"),
        ] {
            let names = names(&[ours.clone(), file("compiled", 1.0, more)]);
            assert_eq!(names.len(), 2, "{names:?}");
            assert_eq!(names[1], format!("Kernfusion, compiled, {name}"));
        }
        let rounded = file("compiled", 1.0, json!({"tokens_per_s": 100.04}));
        assert_eq!(names(&[ours.clone(), rounded]), ["Kernfusion, compiled"]);
        let unknown = file("compiled", 1.0, json!({"tokens_per_s": null}));
        assert_eq!(names(&[unknown.clone(), unknown.clone()]), ["Kernfusion, compiled"]);
        assert!(bench_page(&[unknown]).contains("<td>–</td>"));
    }

    #[test]
    fn our_results_of_files_are_bars_of_their_own() {
        let of =
            |mode: &str, path: &str| Measurements { source: Some(path.into()), ..file(mode, 1.0, json!({})) };
        let ours = file("compiled", 0.5, json!({}));
        let files =
            [of("compiled", "a/old.json"), of("torch-eager", "b/1.json"), of("torch-eager", "b/2.json")];
        let all = [vec![ours.clone()], files.to_vec()].concat();
        let all = groups(&all);
        let names: Vec<_> = all.iter().map(Group::name).collect();
        assert_eq!(names, ["Kernfusion, compiled", "Kernfusion, compiled, old.json", "torch eager"]);
        assert_eq!((all[0].class(), all[0].seconds(), all[1].class()), ("ours", 0.5, "reference"));
        assert_eq!(all[2].rows.len(), 2);
        let all = [ours, of("compiled", "a/old.json"), of("compiled", "b/old.json")];
        let names: Vec<_> = groups(&all).iter().map(Group::name).collect();
        assert_eq!(names[1..], ["Kernfusion, compiled, a/old.json", "Kernfusion, compiled, b/old.json"]);
    }
}
