//! The page of a training run: what its log has kept, and what its directory says about it.

use super::Description;
use super::figures::{self, Points, line, plot, steps};
use super::page::{escaped, page, section, tiles};
use super::plot::{Scale, duration, median, number, smoothed};
use kernfusion_lm::train::{Row, StepReport, Usage};

/// Steps whose samples are shown at once; earlier ones are folded away.
const SHOWN: usize = 2;

/// The most steps without a finite loss that are listed.
const LISTED: usize = 8;

/// A page with the curves, the samples and the settings of a run. `name` is what the run is called; `rows` may begin at any
/// step, end anywhere and have gaps.
pub fn run_page(name: &str, about: Option<&Description>, rows: &[Row]) -> String {
    let history = History::new(rows);
    let dropout = about.is_some_and(|about| about.config.dropout() > 0.0);
    let mut sections = vec![history.lead(about), history.facts()];
    sections.push(section(
        "Loss",
        &figures::losses(history.of(|step| step.loss.into()), history.validation.clone(), dropout),
    ));
    sections.push(section("Speed", &history.speed()));
    sections.extend(history.optimizer().map(|figures| section("Optimizer", &figures)));
    sections.extend(history.machine().map(|figures| section("Memory and processor", &figures)));
    sections.extend(history.written().map(|samples| section("What the model writes", &samples)));
    sections.extend(about.map(|about| section("Settings", &about.list())));
    page(&format!("Training run {name}"), &sections)
}

/// The rows by their kind.
struct History<'a> {
    steps: Vec<&'a StepReport>,
    validation: Points,
    samples: Vec<(u64, &'a str, &'a str)>,
}

impl<'a> History<'a> {
    fn new(rows: &'a [Row]) -> Self {
        let mut history = History { steps: vec![], validation: vec![], samples: vec![] };
        for row in rows {
            match row {
                Row::Step(report) => history.steps.push(report),
                Row::Validation { step, val_loss } => history.validation.push((*step as f64, *val_loss)),
                Row::Sample { step, prompt, sample } => history.samples.push((*step, prompt, sample)),
            }
        }
        history
    }

    /// A figure of each step.
    fn of(&self, figure: impl Fn(&StepReport) -> f64) -> Points {
        self.steps.iter().map(|step| (step.step as f64, figure(step))).collect()
    }

    /// A figure of each step that has it.
    fn known(&self, figure: impl Fn(&StepReport) -> Option<f64>) -> Points {
        self.steps.iter().filter_map(|step| Some((step.step as f64, figure(step)?))).collect()
    }

    /// How far the run has come, and what the log leaves open.
    fn lead(&self, about: Option<&Description>) -> String {
        let mut text = String::new();
        if let Some(about) = about {
            let parameters = number(about.config.parameters() as f64);
            text = format!("A model of {parameters} parameters learns from {}. ", escaped(&about.text.name));
        }
        let Some((first, last)) = self.steps.first().zip(self.steps.last()) else {
            return format!("<p>{text}The log has no step.</p>\n");
        };
        let [begin, end] = [first.step, last.step].map(|step| number(step as f64));
        let asked = about.map(|about| about.settings.steps).filter(|&steps| steps > last.step);
        let asked = asked.map_or(String::new(), |steps| format!(" of {}", number(steps as f64)));
        text += &match first.step {
            1 if end == "1" && asked.is_empty() => "1 step is done.".into(),
            1 => format!("{end}{asked} steps are done."),
            _ => format!("The log begins with step {begin} and ends with step {end}{asked}."),
        };
        let missing = last.step.saturating_sub(first.step).saturating_sub(self.steps.len() as u64 - 1);
        match missing {
            0 => {}
            1 => text += " 1 step in between is missing.",
            _ => text += &format!(" {} steps in between are missing.", number(missing as f64)),
        }
        let bad = self.of(|step| step.loss.into()).into_iter().chain(self.validation.iter().copied());
        let bad: Vec<_> = bad.filter(|(_, loss)| !loss.is_finite()).map(|(step, _)| number(step)).collect();
        if !bad.is_empty() {
            let more = if bad.len() > LISTED { " …" } else { "" };
            let listed = bad[..bad.len().min(LISTED)].join(", ");
            text += &format!(" Losses that are no finite number are left out: step {listed}{more}.");
        }
        format!("<p>{text}</p>\n")
    }

    fn facts(&self) -> String {
        let mut facts = Vec::new();
        let mut add = |value: f64, text: &dyn Fn(f64) -> String, name: String| {
            if value.is_finite() {
                facts.push((text(value), name));
            }
        };
        let nats = |loss: f64| format!("{loss:.4}");
        let losses = smoothed(&self.of(|step| step.loss.into()));
        if let Some(&(_, loss)) = losses.last() {
            add(loss, &nats, "nats per token, the training loss of the last steps".into());
        }
        if let Some(&(step, loss)) = self.validation.last() {
            add(loss, &nats, format!("validation loss after {}", steps(step)));
        }
        let lowest =
            self.validation.iter().filter(|point| point.1.is_finite()).min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some(&(step, loss)) = lowest.filter(|point| Some(*point) != self.validation.last()) {
            add(loss, &nats, format!("the lowest validation loss, after {}", steps(step)));
        }
        let seconds: Vec<_> = self.steps.iter().map(|step| step.seconds).collect();
        let finite = seconds.iter().filter(|x| x.is_finite());
        add(finite.sum(), &duration, "in steps".into());
        let rates: Vec<_> = self.steps.iter().map(|step| step.tokens_per_s).collect();
        add(median(&rates).round(), &number, "tokens a second in the median".into());
        let peak = self.steps.iter().filter_map(|step| step.usage.peak_mib).fold(f64::NAN, f64::max);
        add(peak.round(), &|peak| format!("{} MiB", number(peak)), "of memory at most".into());
        tiles(&facts)
    }

    fn speed(&self) -> String {
        let rates = self.of(|step| step.tokens_per_s);
        let mean = smoothed(&rates);
        let lines = [line("each step", "faint", rates), line("its mean", "ours", mean)];
        plot("Speed of steps", "tokens per second", Scale::FromZero, lines)
    }

    /// The learning rate, if it changes, and the norm of the gradients, if it is known.
    fn optimizer(&self) -> Option<String> {
        let rates = self.of(|step| step.learning_rate);
        let norms = self.known(|step| step.gradient_norm.map(f64::from));
        let mut figures = String::new();
        if rates.iter().any(|rate| rate.1.is_finite() && rate.1 != rates[0].1) {
            let lines = [line("learning rate", "ours", rates)];
            figures += &plot("Learning rate", "learning rate", Scale::FromZero, lines);
        }
        if !norms.is_empty() {
            let mean = smoothed(&norms);
            let lines = [line("each step", "faint", norms), line("its mean", "apart", mean)];
            figures += &plot("Norm of all gradients before clipping", "norm", Scale::Log, lines);
        }
        (!figures.is_empty()).then_some(figures)
    }

    /// Memory, and cores that were busy.
    fn machine(&self) -> Option<String> {
        let usage = |figure: fn(&Usage) -> Option<f64>| self.known(|step| figure(&step.usage));
        let memory = [
            line("resident", "ours", usage(|usage| usage.resident_mib)),
            line("the most so far", "reference", usage(|usage| usage.peak_mib)),
        ];
        let cores = usage(|usage| usage.busy_cores);
        if memory[0].points.is_empty() && cores.is_empty() {
            return None;
        }
        let mean = smoothed(&cores);
        let cores = [line("since the step before", "faint", cores), line("its mean", "validation", mean)];
        Some(
            plot("Memory of the process", "MiB", Scale::FromZero, memory)
                + &plot("Busy cores", "cores", Scale::FromZero, cores),
        )
    }

    /// The last samples, and the earlier ones folded away.
    fn written(&self) -> Option<String> {
        let last = self.samples.chunk_by(|a, b| a.0 == b.0).rev().take(SHOWN).map(<[_]>::len).sum::<usize>();
        let (earlier, last) = self.samples.split_at(self.samples.len() - last);
        if last.is_empty() {
            return None;
        }
        let folded = match earlier.is_empty() {
            true => String::new(),
            false => {
                format!("<details><summary>earlier ones</summary>\n{}</details>\n", figures::written(earlier))
            }
        };
        Some(folded + &figures::written(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f32, learning_rate: f64) -> Row {
        Row::Step(StepReport {
            step,
            loss,
            gradient_norm: None,
            learning_rate,
            seconds: 0.5,
            tokens_per_s: 128.0,
            usage: Usage::default(),
        })
    }

    #[test]
    fn a_page_says_what_the_log_has_and_what_it_has_not() {
        let sample = |step, sample: &str| Row::Sample { step, prompt: "<a>".into(), sample: sample.into() };
        let rows = [
            step(1, 4.0, 1e-3),
            step(2, f32::NAN, 1e-3),
            Row::Validation { step: 2, val_loss: 3.25 },
            sample(2, "first"),
            sample(3, "second"),
            step(4, 2.0, 5e-4),
            Row::Validation { step: 4, val_loss: 3.5 },
            sample(4, "third"),
        ];
        let page = run_page("tiny & small", None, &rows);
        for part in [
            "<h1>Training run tiny &amp; small</h1>",
            "4 steps are done. 1 step in between is missing.",
            "left out: step 2.",
            "<b>3.5000</b><span>validation loss after 4 steps",
            "<b>3.2500</b><span>the lowest validation loss, after 2 steps",
            "<b>1.5 s</b>",
            "<b>128</b>",
            "Learning rate",
            "<summary>earlier ones</summary>",
            "<mark>&lt;a&gt;</mark>third",
            "class=\"dots validation\"",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(
            !page.contains("NaN")
                && !page.contains("<script")
                && !page.contains("http")
                && !page.contains("Settings")
        );
        let [folded, end, shown] =
            ["first</pre>", "</details>", "second</pre>"].map(|part| page.find(part).unwrap());
        assert!(folded < end && end < shown);
    }

    #[test]
    fn a_page_of_numbers_that_no_run_has() {
        let rows =
            Row::read_all(std::path::Path::new("../tests/fixtures/bad_input/log_backwards.jsonl")).unwrap();
        let page = run_page("x", None, &rows);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }

    #[test]
    fn a_page_of_hardly_anything() {
        let page = run_page("x", None, &[step(7, 4.0, 1e-3)]);
        assert!(page.contains("begins with step 7 and ends with step 7") && !page.contains("NaN"), "{page}");
        assert!(page.contains("class=\"dots ours\" d=\"M401.0"), "{page}");
        let page = run_page("x", None, &[Row::Validation { step: 3, val_loss: f64::NAN }]);
        assert!(page.contains("The log has no step.") && !page.contains("NaN"), "{page}");
    }
}
