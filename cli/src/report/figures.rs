//! Figures that several pages have.

use super::page::escaped;
use super::plot::{Line, Plot, Scale, number, smoothed};

/// Points by step.
pub(crate) type Points = Vec<(f64, f64)>;

/// Training and validation losses.
pub(crate) fn losses(losses: Points, validation: Points, dropout: bool) -> String {
    let [with, without] = if dropout { [", with dropout", ", without dropout"] } else { ["", ""] };
    let mean = smoothed(&losses);
    let lines = [
        line(format!("each step{with}"), "faint", losses),
        line("its mean", "ours", mean),
        line(format!("validation{without}"), "validation", validation),
    ];
    plot("Training and validation loss", "nats per token", Scale::Linear, lines)
}

/// A plot over steps; lines without points are left out.
pub(crate) fn plot(
    title: &str,
    y: &'static str,
    scale: Scale,
    lines: impl IntoIterator<Item = Line>,
) -> String {
    let lines = lines.into_iter().filter(|line| !line.points.is_empty()).collect();
    Plot { title: title.into(), x: "step", y, scale, lines, bound: None }.figure()
}

/// A curve of a plot.
pub(crate) fn line(label: impl Into<String>, class: &'static str, points: Points) -> Line {
    Line { label: label.into(), class, points }
}

/// A number of steps.
pub(crate) fn steps(number_of_steps: f64) -> String {
    if number_of_steps == 1.0 { "1 step".into() } else { format!("{} steps", number(number_of_steps)) }
}

/// Samples: the steps done, the prompt and the text of each, those after the same number of steps together.
pub(crate) fn written(samples: &[(u64, &str, &str)]) -> String {
    let one = |&(_, prompt, text): &(u64, &str, &str)| {
        format!("<pre><mark>{}</mark>{}</pre>\n", escaped(prompt), escaped(text))
    };
    let together = samples.chunk_by(|a, b| a.0 == b.0).map(|samples| {
        let texts: String = samples.iter().map(one).collect();
        let steps = steps(samples[0].0 as f64);
        format!("<div class=\"written\"><h3>after {steps}</h3>\n{texts}</div>\n")
    });
    together.collect()
}
