//! The tables of `kernfusion profile`, in 100 columns.

use crate::common::screen::{Screen, grouped, mib};
use crate::measurement::profile::Rates;
use serde::Serialize;

/// Columns of the last column, the names.
const NAME: usize = 47;

/// Equal kernels of several layers; all sums are over them.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) shape: String,
    pub(crate) form: &'static str,
    pub(crate) count: usize,
    pub(crate) seconds: f64,
    pub(crate) floor_s: f64,
    /// What the floor comes from: bytes, products of a type, or other arithmetic.
    pub(crate) bound: &'static str,
    pub(crate) bytes: usize,
    pub(crate) operations: usize,
}

/// Writes the rates, the kernels (at most `lines`, if not 0), the forms and the sums.
pub(crate) fn show(groups: &[Group], (peaks, wide): Rates<'_>, step: f64, lines: usize, screen: &mut Screen) {
    let giga = |rate: f64| rate / 1e9;
    screen.line(format!(
        "measured: {:.1} GB/s copied, {:.1} read; products {:.0} GFLOP/s in {wide}, {:.0} in bf16, {:.0} in int8",
        giga(peaks.bandwidth),
        giga(peaks.reads),
        giga(peaks.f32_products),
        giga(peaks.bf16_products),
        giga(peaks.int8_products)
    ));
    let total: f64 = groups.iter().map(|group| group.seconds).sum();
    screen.line(format!(
        "\n{:>9} {:>6} {:>9} {:>6} {:<7} {:>5}  {}",
        "ms", "share", "floor ms", "of it", "bound", "count", "kernels, with rows x k x columns"
    ));
    let shown = if lines == 0 { groups.len() } else { lines };
    for group in groups.iter().take(shown) {
        let Group { count, bound, seconds, floor_s, .. } = group;
        let name = shortened(&group.name, NAME.saturating_sub(group.shape.len() + 1));
        let figures = figures(*seconds, *floor_s, total);
        screen.line(format!("{figures} {bound:<7} {count:>5}  {name} {}", group.shape));
    }
    if groups.len() > shown {
        let rest = &groups[shown..];
        let [seconds, floor] = [rest.iter().map(|g| g.seconds).sum(), rest.iter().map(|g| g.floor_s).sum()];
        let count: usize = rest.iter().map(|group| group.count).sum();
        let figures = figures(seconds, floor, total);
        screen.line(format!(
            "{figures} {:<7} {count:>5}  {} more lines (--lines 0 shows all)",
            "",
            rest.len()
        ));
    }
    screen.line(format!(
        "\n{:>9} {:>6} {:>9} {:>6} {:>7} {:>10}  form",
        "ms", "share", "floor ms", "of it", "count", "moved MiB"
    ));
    for form in ["contraction", "reduce", "map", "collective"] {
        let of: Vec<_> = groups.iter().filter(|group| group.form == form).collect();
        family(form, &of, total, screen);
    }
    family("all", &groups.iter().collect::<Vec<_>>(), total, screen);
    let floor: f64 = groups.iter().map(|group| group.floor_s).sum();
    screen.line(format!(
        "\nstep {:.1} ms; kernels {:.1} ms; sum of floors {:.1} ms, {:.0} % of the kernels' time",
        1e3 * step,
        1e3 * total,
        1e3 * floor,
        100.0 * floor / total
    ));
}

fn family(name: &str, groups: &[&Group], total: f64, screen: &mut Screen) {
    let sum = |of: fn(&Group) -> f64| groups.iter().map(|group| of(group)).sum::<f64>();
    let (count, bytes) =
        groups.iter().fold((0, 0), |(count, bytes), group| (count + group.count, bytes + group.bytes));
    if count > 0 {
        let figures = figures(sum(|g| g.seconds), sum(|g| g.floor_s), total);
        screen.line(format!("{figures} {:>7} {:>10.1}  {name}", grouped(count as u64), mib(bytes)));
    }
}

/// Time, its share, floor, and how much of the time the floor is.
fn figures(seconds: f64, floor: f64, total: f64) -> String {
    let percent = |part: f64, whole: f64| format!("{:.1}%", 100.0 * part / whole.max(f64::MIN_POSITIVE));
    let of = format!("{:.0}%", 100.0 * floor / seconds.max(f64::MIN_POSITIVE));
    format!("{:>9.3} {:>6} {:>9.3} {of:>6}", 1e3 * seconds, percent(seconds, total), 1e3 * floor)
}

/// A name of at most `most` characters; the middle of a longer one is left out.
pub(super) fn shortened(name: &str, most: usize) -> String {
    let characters: Vec<char> = name.chars().collect();
    if characters.len() <= most {
        return name.into();
    }
    let kept = most.saturating_sub(1);
    let tail = kept / 3;
    let (start, end) = (&characters[..kept - tail], &characters[characters.len() - tail..]);
    start.iter().chain(['…'].iter()).chain(end).collect()
}
