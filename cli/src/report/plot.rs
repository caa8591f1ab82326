//! Line plots as SVG inside of a page.
//!
//! Colours are classes, which the page's style gives a light and a dark value; a plotting library would write them into
//! every element. Long curves are thinned to what a screen can show, keeping the lowest and the highest value of each piece.

use super::page::escaped;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 280.0;
/// Space for numbers and names on the left (more, if the numbers are long), right, above and below.
const MARGINS: [f64; 4] = [66.0, 24.0, 10.0, 44.0];

/// What stands on the left of the longest number, and between it and the picture.
const NAME: f64 = 20.0;
const GAP: f64 = 8.0;

/// Pieces of a curve of which the extremes are kept.
const PIECES: usize = 340;

/// The most points of a curve that are marked each, so that a single one can be seen.
const DOTS: usize = 40;

/// About how many numbers stand at an axis.
const TICKS: f64 = 6.0;

/// How values are placed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// Beginning with the lowest value.
    Linear,
    /// Beginning with 0.
    FromZero,
    /// By their logarithm; values of 0 are left out.
    Log,
}

/// A curve.
pub(crate) struct Line {
    /// What it is called.
    pub(crate) label: String,
    /// The class of its style.
    pub(crate) class: &'static str,
    /// x and y, by ascending x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Curves over one axis.
pub(crate) struct Plot {
    pub(crate) title: String,
    /// What is counted on the right.
    pub(crate) x: &'static str,
    /// What is measured upwards.
    pub(crate) y: &'static str,
    pub(crate) scale: Scale,
    pub(crate) lines: Vec<Line>,
    /// A height to be compared with.
    pub(crate) bound: Option<f64>,
}

impl Plot {
    /// A figure with title, legend and picture.
    pub(crate) fn figure(&self) -> String {
        let frame = Frame::new(self);
        let keys = self
            .lines
            .iter()
            .map(|line| format!("<span><i class=\"key {}\"></i>{}</span>", line.class, escaped(&line.label)));
        let bound = self.bound.map(|bound| {
            format!("<span><i class=\"key bound\"></i>asked for: {} at most</span>", number(bound))
        });
        let legend: String = keys.chain(bound).collect();
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escaped(&self.title)
        );
        svg.push_str(&frame.axes(self));
        if let Some(bound) = self.bound {
            let y = frame.y(bound);
            let _ = writeln!(
                svg,
                "<path class=\"bound\" d=\"M{:.1} {y:.1}H{:.1}\"/>",
                frame.left(),
                frame.right()
            );
        }
        for line in &self.lines {
            let _ = writeln!(svg, "<path class=\"line {}\" d=\"{}\"/>", line.class, frame.path(&line.points));
            if line.points.len() <= DOTS {
                let _ =
                    writeln!(svg, "<path class=\"dots {}\" d=\"{}\"/>", line.class, frame.dots(&line.points));
            }
        }
        let title = escaped(&self.title);
        format!(
            "<figure>\n<figcaption>{title}</figcaption>\n<div class=\"legend\">{legend}</div>\n{svg}</svg>\n</figure>\n"
        )
    }
}

/// A curve without its noise: means of about a fiftieth of it. Values that are not finite count for nothing.
pub(crate) fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let half = points.len() / 100;
    let mean = |place: usize| {
        let near = &points[place.saturating_sub(half)..(place + half + 1).min(points.len())];
        let finite: Vec<_> = near.iter().map(|point| point.1).filter(|y| y.is_finite()).collect();
        finite.iter().sum::<f64>() / finite.len() as f64
    };
    points.iter().enumerate().map(|(place, point)| (point.0, mean(place))).collect()
}

/// A number of things, such as 1 thread, 2 threads and 2 classes.
pub(crate) fn counted(number: usize, thing: &str) -> String {
    let end = match number {
        1 => "",
        _ if thing.ends_with('s') || thing.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {thing}{end}", grouped(number as f64))
}

/// A number as people write it: few digits, powers of ten where they are shorter.
pub(crate) fn number(x: f64) -> String {
    let magnitude = x.abs();
    match magnitude {
        0.0 => "0".into(),
        1e6.. | ..1e-3 => {
            let exponent = magnitude.log10().floor() as i32;
            let mantissa = x / 10f64.powi(exponent);
            let digits = format!("{mantissa:.1}");
            let power = format!("10{}", superscript(exponent));
            match digits.as_str() {
                "1.0" => power,
                digits => format!("{}·{power}", digits.trim_end_matches(".0")),
            }
        }
        1000.0.. => grouped(x),
        _ => {
            let digits = format!("{x:.4}");
            digits.trim_end_matches('0').trim_end_matches('.').to_string()
        }
    }
}

/// The middle of the finite ones; NaN if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<_> = values.iter().copied().filter(|x| x.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        length if length.is_multiple_of(2) => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

/// Seconds in the unit that suits them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.1} s"),
        ..7200.0 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Digits in groups of three.
pub(crate) fn grouped(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    format!("{}{}", if x < 0.0 { "-" } else { "" }, groups.join(","))
}

fn superscript(exponent: i32) -> String {
    let digits = exponent.to_string();
    digits
        .chars()
        .map(|c| {
            if c == '-' {
                '⁻'
            } else {
                ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][c as usize - '0' as usize]
            }
        })
        .collect()
}

/// Where values are on the picture.
struct Frame {
    x: [f64; 2],
    /// Logarithms, if the scale is one.
    y: [f64; 2],
    log: bool,
    /// Where the picture begins.
    left: f64,
}

impl Frame {
    fn new(plot: &Plot) -> Self {
        let log = plot.scale == Scale::Log;
        let points = || plot.lines.iter().flat_map(|line| &line.points);
        let x = extent(points().map(|point| point.0));
        let heights = points().map(|point| point.1).chain(plot.bound).filter(|y| !log || *y > 0.0);
        let [low, high] = extent(heights.map(|y| if log { y.log10() } else { y }));
        let y = match plot.scale {
            Scale::Log => [low.floor(), (high + 0.1).ceil()],
            Scale::FromZero => [0.0, high * 1.08],
            Scale::Linear => [low - 0.04 * (high - low), high + 0.04 * (high - low)],
        };
        let frame = Frame { x, y, log, left: MARGINS[0] };
        let widest = frame.heights().iter().map(|(_, name)| width(name)).fold(0.0, f64::max);
        Frame { left: frame.left.max(NAME + widest + GAP), ..frame }
    }

    /// The numbers on the left.
    fn heights(&self) -> Vec<(f64, String)> {
        match self.log {
            true => decades(self.y),
            false => ticks(self.y).into_iter().map(|tick| (tick, number(tick))).collect(),
        }
    }

    fn left(&self) -> f64 {
        self.left
    }

    fn right(&self) -> f64 {
        WIDTH - MARGINS[1]
    }

    fn x(&self, x: f64) -> f64 {
        self.left() + (self.right() - self.left()) * ((x - self.x[0]) / (self.x[1] - self.x[0]))
    }

    fn y(&self, y: f64) -> f64 {
        let (top, bottom) = (MARGINS[2], HEIGHT - MARGINS[3]);
        let y = if self.log { y.log10() } else { y };
        bottom - (bottom - top) * ((y - self.y[0]) / (self.y[1] - self.y[0]))
    }

    fn axes(&self, plot: &Plot) -> String {
        let mut svg = String::new();
        let (left, right, bottom) = (self.left(), self.right(), HEIGHT - MARGINS[3]);
        for (tick, name) in self.heights() {
            let y = self.y(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>");
            let _ = writeln!(
                svg,
                "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left - GAP,
                y + 4.0,
                name
            );
        }
        // Steps are counted: there is none between two of them.
        for tick in ticks(self.x).into_iter().filter(|tick| (tick - tick.round()).abs() < 1e-6) {
            let x = self.x(tick);
            let _ = writeln!(svg, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v5\"/>");
            let _ = writeln!(
                svg,
                "<text class=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 18.0,
                number(tick)
            );
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{left:.1} {bottom:.1}H{right:.1}\"/>");
        let middle = (left + right) / 2.0;
        let _ = writeln!(
            svg,
            "<text class=\"middle name\" x=\"{middle:.1}\" y=\"{:.1}\">{}</text>",
            HEIGHT - 6.0,
            escaped(plot.x)
        );
        let half = (MARGINS[2] + bottom) / 2.0;
        let _ = writeln!(
            svg,
            "<text class=\"middle name\" transform=\"translate(13 {half:.1}) rotate(-90)\">{}</text>",
            escaped(plot.y)
        );
        svg
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let shown: Vec<_> = self.shown(points).collect();
        let places = thinned(&shown).into_iter().map(|(x, y)| format!("{:.1} {:.1}", self.x(x), self.y(y)));
        let places: Vec<_> = places.collect();
        if places.is_empty() { String::new() } else { format!("M{}", places.join("L")) }
    }

    /// A line of no length for each point, which is drawn as a dot.
    fn dots(&self, points: &[(f64, f64)]) -> String {
        self.shown(points).map(|&(x, y)| format!("M{:.1} {:.1}h0", self.x(x), self.y(y))).collect()
    }

    /// The points that have a place.
    fn shown<'a>(&self, points: &'a [(f64, f64)]) -> impl Iterator<Item = &'a (f64, f64)> + use<'a> {
        let log = self.log;
        points.iter().filter(move |point| point.1.is_finite() && (!log || point.1 > 0.0))
    }
}

/// About how wide a number is.
fn width(number: &str) -> f64 {
    number.chars().map(|letter| if matches!(letter, ',' | '.' | '·') { 3.4 } else { 6.8 }).sum()
}

/// The lowest and the highest of each piece, in their order.
fn thinned(points: &[&(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= 2 * PIECES {
        return points.iter().map(|point| **point).collect();
    }
    let pieces = points.chunks(points.len().div_ceil(PIECES)).flat_map(|piece| {
        let by_height = |a: &&&(f64, f64), b: &&&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = [piece.iter().min_by(by_height), piece.iter().max_by(by_height)];
        let mut ends = ends.map(|end| **end.expect("a piece is not empty"));
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends
    });
    pieces.collect()
}

/// The least and the largest, never the same, and both so far from the largest of all numbers that their distance in pixels is one.
fn extent(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let most = f64::MAX * 1e-6;
    let finite = values.filter(|x| x.is_finite()).map(|x| x.clamp(-most, most));
    let [low, high] =
        finite.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], x| [low.min(x), high.max(x)]);
    match () {
        () if low > high => [0.0, 1.0],
        () if low == high => {
            let half = (low.abs() * 1e-3).max(0.5);
            [low - half, high + half]
        }
        () => [low, high],
    }
}

/// Multiples of 1, 2 or 5 times a power of ten.
fn ticks([low, high]: [f64; 2]) -> Vec<f64> {
    let rough = (high - low) / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil();
    // Values so large that their distances vanish beside them have no ticks.
    if first.is_nan() || first.abs() >= 1.0 / f64::EPSILON {
        return vec![];
    }
    let most = 2 * TICKS as i32;
    let ticks = (0..most).map(|tick| (first + f64::from(tick)) * step);
    ticks.take_while(|tick| *tick <= high + 1e-9 * step).collect()
}

/// Powers of ten between two logarithms, every second or third one where there are many.
fn decades([low, high]: [f64; 2]) -> Vec<(f64, String)> {
    let every = (((high - low) / TICKS).ceil() as usize).max(1);
    let exponents = (low as i32..=high as i32).step_by(every);
    exponents.map(|exponent| (10f64.powi(exponent), format!("10{}", superscript(exponent)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (1e-3, "0.001"),
            (1e-4, "10⁻⁴"),
            (2.54e-6, "2.5·10⁻⁶"),
            (-1500.0, "-1,500"),
            (162_218.0, "162,218"),
            (3e6, "3·10⁶"),
        ];
        for (x, text) in cases {
            assert_eq!(number(x), text);
        }
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(ticks([0.0, 1000.0]), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(ticks([1.0, 4.0]), [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]);
        let decades: Vec<_> = decades([-9.0, -2.0]).into_iter().map(|(_, name)| name).collect();
        assert_eq!(decades, ["10⁻⁹", "10⁻⁷", "10⁻⁵", "10⁻³"]);
    }

    #[test]
    fn values_without_distances_have_no_ticks() {
        assert!(
            ticks([1e300, 1e300]).is_empty() && ticks([u64::MAX as f64, 1.8446744073709556e19]).len() <= 12
        );
        assert_eq!(extent([5e20].into_iter()), [5e20 - 5e17, 5e20 + 5e17]);
        let [low, high] = extent([f64::MIN, f64::MAX].into_iter());
        assert!((high - low).is_finite());
    }

    #[test]
    fn thinning_keeps_every_spike() {
        let mut points: Vec<_> = (0..10_000).map(|x| (f64::from(x), 1.0)).collect();
        points[4321].1 = 9.0;
        points[7000].1 = -9.0;
        let thinned = thinned(&points.iter().collect::<Vec<_>>());
        assert!(thinned.len() <= 2 * PIECES + 2);
        assert!(thinned.contains(&(4321.0, 9.0)) && thinned.contains(&(7000.0, -9.0)));
        assert!(thinned.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn a_plot_has_its_lines_where_their_values_are() {
        let line = |class: &'static str, points: &[(f64, f64)]| Line {
            label: class.into(),
            class,
            points: points.to_vec(),
        };
        let plot = Plot {
            title: "a <b>".into(),
            x: "step",
            y: "distance",
            scale: Scale::Log,
            lines: vec![line("one", &[(1.0, 1e-6), (2.0, 0.0), (3.0, 1e-4)]), line("none", &[])],
            bound: Some(1e-3),
        };
        let figure = plot.figure();
        assert!(figure.contains("a &lt;b&gt;") && !figure.contains("NaN"), "{figure}");
        // From 10⁻⁶ at the bottom to 10⁻² at the top; a distance of 0 has no logarithm.
        assert!(figure.contains("class=\"line one\" d=\"M66.0 236.0L736.0 123.0\""), "{figure}");
        assert!(figure.contains("class=\"bound\" d=\"M66.0 66.5H736.0\""), "{figure}");
        // Numbers that are long have the place that they need.
        let long = Plot {
            scale: Scale::FromZero,
            lines: vec![line("one", &[(1.0, 3.0), (2.0, 250_000.0)])],
            ..plot
        };
        assert!(Frame::new(&long).left > MARGINS[0] && long.figure().contains("250,000"));
    }
}
