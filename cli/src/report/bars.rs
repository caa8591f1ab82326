//! Bars as SVG inside of a page: one for each thing that was measured, with its spread.

use super::page::escaped;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 24.0;
const GAP: f64 = 10.0;
/// Where bars begin and the longest one ends: names stand on the left, figures on the right.
const SPAN: [f64; 2] = [250.0, 650.0];
/// Where bars begin at most, for long names.
const LAST_START: f64 = 450.0;
/// Of a letter, about.
const LETTER: f64 = 6.6;

/// A bar.
pub(super) struct Bar {
    pub(super) name: String,
    /// The class of its style.
    pub(super) class: &'static str,
    /// None: it was not measured.
    pub(super) value: Option<f64>,
    /// The least and the greatest.
    pub(super) spread: Option<[f64; 2]>,
}

/// A figure of bars from 0 on, with a note below the title; `text` writes a value.
pub(super) fn bars(title: &str, note: &str, bars: &[Bar], text: impl Fn(f64) -> String) -> String {
    let ends = bars.iter().flat_map(|bar| bar.value.into_iter().chain(bar.spread.map(|[_, high]| high)));
    let longest = ends.filter(|x| x.is_finite()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let letters = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
    let start = (20.0 + LETTER * letters as f64).clamp(SPAN[0], LAST_START);
    let x = |value: f64| start + (SPAN[1] - start) * value / longest;
    let (title, height) = (escaped(title), bars.len() as f64 * (HEIGHT + GAP) + GAP);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n");
    for (number, bar) in bars.iter().enumerate() {
        let top = GAP + number as f64 * (HEIGHT + GAP);
        let middle = top + HEIGHT / 2.0;
        let mut label = |class: &str, x: f64, text: &str| {
            let _ = writeln!(
                svg,
                "<text class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                middle + 4.0,
                escaped(text)
            );
        };
        label("end", start - 10.0, &bar.name);
        let Some(value) = bar.value.filter(|value| value.is_finite()) else {
            label("", start + 8.0, "not measured");
            continue;
        };
        let end = bar.spread.map_or(value, |[_, high]| high.max(value));
        label("figure", x(end) + 8.0, &text(value));
        let _ = writeln!(
            svg,
            "<rect class=\"bar {}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{HEIGHT}\" rx=\"2\"/>",
            bar.class,
            start,
            x(value) - start
        );
        if let Some([low, high]) = bar.spread.filter(|[low, high]| low < high) {
            let (low, high) = (x(low), x(high));
            let _ = writeln!(
                svg,
                "<path class=\"spread\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v10M{high:.1} {:.1}v10\"/>",
                middle - 5.0,
                middle - 5.0
            );
        }
    }
    let _ = writeln!(svg, "<path class=\"axis\" d=\"M{:.1} {:.1}V{height:.1}\"/>", start, GAP / 2.0);
    let note = escaped(note);
    format!(
        "<figure>\n<figcaption>{title}</figcaption>\n<div class=\"legend\">{note}</div>\n{svg}</svg>\n</figure>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |name: &str, value, spread| Bar { name: name.into(), class: "ours", value, spread };
        let rows = [bar("a", Some(2.0), Some([1.5, 4.0])), bar("b", Some(1.0), None), bar("<c>", None, None)];
        let figure = bars("times", "", &rows, |value| format!("{value} s"));
        assert!(figure.contains("width=\"200.0\"") && figure.contains("width=\"100.0\""), "{figure}");
        assert!(figure.contains("M400.0 22.0H650.0") && figure.contains("&lt;c&gt;"), "{figure}");
        assert!(figure.contains("not measured") && figure.contains(">1 s<"), "{figure}");
    }
}
