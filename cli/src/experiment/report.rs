//! What the experiments have shown: a page and its figures as JSON.

use super::{Curve, Deviation, Reference, THESIS, Thesis, ThesisFigures, Written, thesis};
use crate::report::Description;
use crate::report::figures::{self, line};
use crate::report::page::{escaped, page, section, table, tiles};
use crate::report::plot::{Plot, Scale, duration, grouped, median, number, smoothed};
use crate::text_file::save;
use kernfusion_lm::Result;
use serde_json::{Value, json};
use std::path::Path;

/// What the page is called in its folder.
const PAGE: &str = "report.html";

/// What the figures are called.
const FIGURES: &str = "figures.json";

/// Our side of an experiment, beside its curve.
pub struct Measured {
    /// The model, the settings, the text, and the machine.
    pub about: Description,
    /// The most memory that was taken; none if nothing was trained this time.
    pub peak_mib: Option<f64>,
}

/// A page and its figures.
pub struct Report {
    page: String,
    figures: Value,
}

impl Report {
    /// Writes `report.html` and `figures.json` into a directory, each whole or not at all.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<()> {
        save(&directory.join(FIGURES), &format!("{:#}\n", self.figures))?;
        save(&directory.join(PAGE), &self.page)
    }
}

/// The report of a verification.
pub fn verification_report(
    ours: &Measured,
    curve: &Curve,
    reference: &Reference,
    deviation: &Deviation,
) -> Report {
    let steps = curve.losses.len();
    let verdict = match deviation.is_within_bound() {
        true => "The two curves agree: no step is farther apart than was asked for.",
        false => "The two curves are farther apart than was asked for.",
    };
    let lead = format!(
        "<p>Kernfusion and {} train the same model from the same first parameters, on the same windows in the same order, \
         without dropout. {verdict}</p>\n",
        escaped(&reference.library)
    );
    let facts = tiles(&[
        (
            number(deviation.max),
            format!("nats apart at most, in step {}; asked for: {}", deviation.step, number(deviation.bound)),
        ),
        (number(deviation.mean), "nats apart on average".into()),
        (
            format!("{:.2} ×", total(&curve.seconds) / total(&reference.seconds)),
            "the time of PyTorch".to_string(),
        ),
        (ratio(ours.peak_mib, reference.peak_mib), "the memory of PyTorch".to_string()),
    ]);
    let sections = [
        lead,
        facts,
        section("Loss", &(losses_of_both(curve, reference) + &distances(deviation))),
        section(&format!("{} steps", number(steps as f64)), &both(ours, curve, reference)),
        section("What the thesis reports", &beside_thesis(&THESIS, &ours.about)),
        section("Settings", &ours.about.list()),
    ];
    let figures = verification_figures(ours, curve, reference, deviation);
    Report { page: page("Verification against PyTorch", &sections), figures }
}

/// The report of a pre-training.
pub fn pretraining_report(ours: &Measured, curve: &Curve) -> Report {
    let steps = curve.losses.len();
    let config = &ours.about.config;
    let lead = format!(
        "<p>A model of {} parameters learns to continue a text, with dropout {}.</p>\n",
        number(config.parameters() as f64),
        number(config.dropout())
    );
    let last = |points: &[(u64, f64)]| points.last().map_or("–".into(), |point| format!("{:.4}", point.1));
    let facts = tiles(&[
        (
            last(&curve.validation),
            format!("validation loss in nats per token after {} steps", number(steps as f64)),
        ),
        (duration(total(&curve.seconds)), "of training".into()),
        (number(tokens_per_s(&ours.about, &curve.seconds)), "tokens a second".into()),
        (
            ours.peak_mib.map_or("–".into(), |peak| format!("{} MiB", number(peak.round()))),
            "of memory at most".into(),
        ),
    ]);
    let sections = [
        lead,
        facts,
        section("Loss", &losses_of_one(curve)),
        section("Speed", &speed(&[("Kernfusion", "ours", &curve.seconds)], &ours.about)),
        section("What the model writes", &written(&curve.samples)),
        section("Settings", &ours.about.list()),
    ];
    let figures = json!({
        "experiment": "pretraining",
        "machine": ours.about.machine,
        "settings": ours.about.settings,
        "config": config,
        "text": ours.about.text,
        "kernfusion": side(ours, curve),
    });
    Report { page: page("Pre-training", &sections), figures }
}

fn verification_figures(
    ours: &Measured,
    curve: &Curve,
    reference: &Reference,
    deviation: &Deviation,
) -> Value {
    json!({
        "experiment": "verification",
        "machine": ours.about.machine,
        "settings": ours.about.settings,
        "config": ours.about.config,
        "text": ours.about.text,
        "kernfusion": side(ours, curve),
        "reference": with_totals(json!(reference), &reference.seconds, &ours.about),
        "deviation": deviation,
        "within_bound": deviation.is_within_bound(),
        "thesis": thesis_figures(&THESIS),
    })
}

fn by_step(values: &[f64]) -> Vec<(f64, f64)> {
    values.iter().enumerate().map(|(step, &value)| (step as f64 + 1.0, value)).collect()
}

fn losses_of_both(curve: &Curve, reference: &Reference) -> String {
    let plot = Plot {
        title: "Training loss".into(),
        x: "step",
        y: "nats per token",
        scale: Scale::Linear,
        lines: vec![
            line(&reference.library, "reference under", by_step(&reference.losses)),
            line("Kernfusion", "ours", by_step(&curve.losses)),
        ],
        bound: None,
    };
    plot.figure()
}

fn distances(deviation: &Deviation) -> String {
    let plot = Plot {
        title: "How far the two losses are apart".into(),
        x: "step",
        y: "nats per token",
        scale: Scale::Log,
        lines: vec![line("|Kernfusion − PyTorch|", "apart", by_step(&deviation.distances))],
        bound: Some(deviation.bound),
    };
    plot.figure()
}

fn losses_of_one(curve: &Curve) -> String {
    let validation = curve.validation.iter().map(|&(step, loss)| (step as f64, loss)).collect();
    figures::losses(by_step(&curve.losses), validation, true)
}

/// Tokens per second over the run, a curve for each side.
fn speed(sides: &[(&str, &'static str, &[f64])], about: &Description) -> String {
    let tokens = about.tokens();
    let rates = sides.iter().map(|(label, class, seconds)| {
        let rates: Vec<_> = seconds.iter().map(|seconds| tokens / seconds).collect();
        line(*label, class, smoothed(&by_step(&rates)))
    });
    let plot = Plot {
        title: "Speed of steps".into(),
        x: "step",
        y: "tokens per second",
        scale: Scale::FromZero,
        lines: rates.collect(),
        bound: None,
    };
    plot.figure()
}

fn both(ours: &Measured, curve: &Curve, reference: &Reference) -> String {
    let row = |name: &str, place: &str, seconds: &[f64], peak: Option<f64>| {
        vec![
            name.to_string(),
            place.to_string(),
            format!("{} s", number((10.0 * total(seconds)).round() / 10.0)),
            format!("{} s", significant(median(seconds))),
            number(tokens_per_s(&ours.about, seconds)),
            peak.map_or("–".into(), |peak| format!("{} MiB", number(peak.round()))),
        ]
    };
    let (time, memory) =
        (total(&curve.seconds) / total(&reference.seconds), ratio(ours.peak_mib, reference.peak_mib));
    let rows = [
        row(&reference.library, &reference.place, &reference.seconds, reference.peak_mib),
        row("Kernfusion", &ours.about.place, &curve.seconds, ours.peak_mib),
        vec![
            "Kernfusion ÷ PyTorch".into(),
            String::new(),
            format!("{time:.2} ×"),
            String::new(),
            String::new(),
            memory,
        ],
    ];
    let head = ["", "on", "all steps", "median step", "tokens/s", "peak memory"];
    let sides: [(&str, &'static str, &[f64]); 2] =
        [(&reference.library, "reference", &reference.seconds), ("Kernfusion", "ours", &curve.seconds)];
    let elsewhere = match reference.place == ours.about.place {
        true => "",
        false => {
            " As far as is known the two did not run on the same processor with the same threads, so that their times \
                  cannot be compared."
        }
    };
    let note = format!(
        "<p class=\"quiet\">Times are those of steps alone: compiling and starting are not in them. Memory is the peak of \
         each process, or on a GPU what was allocated there.{elsewhere}</p>\n"
    );
    table(&head, &rows) + &note + &speed(&sides, &ours.about)
}

fn beside_thesis(thesis: &Thesis, about: &Description) -> String {
    let row = |name: &str, figures: &ThesisFigures| {
        vec![
            name.to_string(),
            format!("{} s", number(figures.seconds)),
            format!("{} MiB", number(figures.mib)),
            grouped(figures.tokens_per_s as f64),
        ]
    };
    let (time, memory) =
        (thesis.library.seconds / thesis.pytorch.seconds, thesis.library.mib / thesis.pytorch.mib);
    let rows = [
        row("PyTorch", &thesis.pytorch),
        row("the thesis' library", &thesis.library),
        vec!["library ÷ PyTorch".into(), format!("{time:.2} ×"), format!("{memory:.2} ×"), String::new()],
    ];
    let other_model = match about.config.parameters() {
        thesis::PARAMETERS => "",
        _ => "; and another model, with 10,788,864 parameters",
    };
    let note = format!(
        "<p class=\"quiet\">Other hardware than above: a graphics card, {}{other_model}. Only the ratios to PyTorch can be \
         set beside each other. The last column is as printed there and contradicts the times: {} steps of 64 × 256 tokens in {} s \
         are {} tokens a second.</p>\n",
        thesis.machine,
        number(thesis.steps as f64),
        number(thesis.pytorch.seconds),
        number(thesis.steps as f64 * 64.0 * 256.0 / thesis.pytorch.seconds),
    );
    let times = format!("{} steps on an {}", number(thesis.steps as f64), thesis.machine);
    table(&["", &times, "memory", "tokens/s, as printed"], &rows) + &note
}

fn written(samples: &[Written]) -> String {
    let samples: Vec<_> = samples.iter().map(|it| (it.step, it.prompt.as_str(), it.text.as_str())).collect();
    figures::written(&samples)
}

/// Our side as JSON.
fn side(ours: &Measured, curve: &Curve) -> Value {
    let mut value = json!(curve);
    value["place"] = json!(ours.about.place);
    value["products"] = json!(ours.about.products);
    value["compile_s"] = json!(ours.about.compile_s);
    value["peak_mib"] = json!(ours.peak_mib);
    with_totals(value, &curve.seconds, &ours.about)
}

fn with_totals(mut value: Value, seconds: &[f64], about: &Description) -> Value {
    value["total_s"] = json!(total(seconds));
    value["median_step_s"] = json!(median(seconds));
    value["tokens_per_s"] = json!(tokens_per_s(about, seconds));
    value
}

fn thesis_figures(thesis: &Thesis) -> Value {
    let row = |row: &ThesisFigures| json!({"total_s": row.seconds, "peak_mib": row.mib, "tokens_per_s_as_printed": row.tokens_per_s});
    json!({
        "machine": thesis.machine,
        "steps": thesis.steps,
        "pytorch": row(&thesis.pytorch),
        "library": row(&thesis.library),
    })
}

/// Over all steps together.
fn tokens_per_s(about: &Description, seconds: &[f64]) -> f64 {
    (about.tokens() * seconds.len() as f64 / total(seconds)).round()
}

fn total(seconds: &[f64]) -> f64 {
    seconds.iter().sum()
}

/// Three digits that count.
fn significant(x: f64) -> String {
    let digits = (2 - x.abs().log10().floor() as i32).clamp(0, 6) as usize;
    format!("{x:.digits$}")
}

fn ratio(ours: Option<f64>, theirs: Option<f64>) -> String {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => format!("{:.2} ×", ours / theirs),
        _ => "–".into(),
    }
}
