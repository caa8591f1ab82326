//! The picture of a run: text and curves of braille points.

use super::state::State;
use crate::common::screen::{counted, grouped};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, LegendPosition, Paragraph, Wrap};

/// Columns of the list of figures.
const FIGURES: u16 = 48;

/// Numbers at the left axis.
const HEIGHTS: usize = 4;

/// Draws all of it.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State) {
    let rows = [
        Constraint::Length(1),
        Constraint::Length(3),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(1),
    ];
    let [title, progress, curves, texts, keys] = Layout::vertical(rows).areas(frame.area());
    let [losses, rates] = Layout::horizontal([Constraint::Fill(3), Constraint::Fill(2)]).areas(curves);
    let [sample, figures] = Layout::horizontal([Constraint::Fill(1), Constraint::Max(FIGURES)]).areas(texts);
    frame.render_widget(heading(state), title);
    frame.render_widget(gauge(state), progress);
    draw_losses(frame, state, losses);
    draw_rates(frame, state, rates);
    frame.render_widget(written(state), sample);
    frame.render_widget(list(state), figures);
    frame.render_widget(help(state), keys);
}

fn heading(state: &State) -> Line<'_> {
    Line::from(vec![
        Span::styled(format!(" {} ", state.directory), Style::new().add_modifier(Modifier::BOLD)),
        Span::styled(format!(" {}", state.model), quiet()),
    ])
}

fn gauge(state: &State) -> Gauge<'_> {
    let ratio = (state.done as f64 / state.steps.max(1) as f64).clamp(0.0, 1.0);
    let left = state.left().map_or(String::new(), |seconds| format!(", {} left", clock(seconds)));
    let doing = match (state.stopping, state.paused) {
        (true, _) => ", stopping after this step",
        (_, true) => ", paused",
        _ => "",
    };
    let label = format!("{} of {}{left}{doing}", grouped(state.done), counted(state.steps as usize, "step"));
    Gauge::default()
        .block(Block::bordered())
        .gauge_style(Style::new().fg(Color::Cyan))
        .ratio(ratio)
        .label(label)
}

fn draw_losses(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let log = |points: Vec<(f64, f64)>| match state.log_scale {
        true => points.into_iter().filter(|point| point.1 > 0.0).map(|(x, y)| (x, y.log10())).collect(),
        false => points,
    };
    let (training, validation) =
        (log(state.losses.points(area.width)), log(state.validation.points(area.width)));
    let value = |y: f64| format!("{:.2}", if state.log_scale { 10f64.powf(y) } else { y });
    let bounds = extent(training.iter().chain(&validation).map(|point| point.1));
    let scale = if state.log_scale { "loss, logarithmic" } else { "loss" };
    let datasets = vec![
        dataset("training", Color::Cyan, GraphType::Line, &training),
        dataset("validation", Color::Green, GraphType::Line, &validation),
    ];
    frame.render_widget(chart(scale, datasets, steps(state), bounds, &value), area);
}

fn draw_rates(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let rates = state.rates.points(area.width);
    let highest = rates.iter().map(|point| point.1).fold(0.0, f64::max);
    let bounds = [0.0, if highest > 0.0 { 1.1 * highest } else { 1.0 }];
    let datasets = vec![dataset("", Color::Magenta, GraphType::Line, &rates)];
    let value = |y: f64| grouped(y.round() as u64);
    frame.render_widget(chart("tokens per second", datasets, steps(state), bounds, &value), area);
}

fn dataset<'a>(name: &'a str, color: Color, kind: GraphType, points: &'a [(f64, f64)]) -> Dataset<'a> {
    let set = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(kind)
        .style(Style::new().fg(color))
        .data(points);
    if name.is_empty() || points.is_empty() { set } else { set.name(name) }
}

/// Curves over steps, with round numbers of steps below and values at the left.
fn chart<'a>(
    title: &'a str,
    datasets: Vec<Dataset<'a>>,
    steps: [f64; 2],
    bounds: [f64; 2],
    value: &dyn Fn(f64) -> String,
) -> Chart<'a> {
    let heights = (0..HEIGHTS).map(|i| bounds[0] + (bounds[1] - bounds[0]) * i as f64 / (HEIGHTS - 1) as f64);
    let below = [steps[0], (steps[0] + steps[1]) / 2.0, steps[1]].map(|step| grouped(step.round() as u64));
    Chart::new(datasets)
        .block(Block::bordered().title(format!(" {title} ")))
        .legend_position(Some(LegendPosition::TopRight))
        .hidden_legend_constraints((Constraint::Percentage(70), Constraint::Percentage(70)))
        .x_axis(Axis::default().bounds(steps).labels(below).labels_alignment(Alignment::Right).style(quiet()))
        .y_axis(Axis::default().bounds(bounds).labels(heights.map(value)).style(quiet()))
}

fn written(state: &State) -> Paragraph<'_> {
    let Some((step, prompt, text)) = &state.sample else {
        return Paragraph::new("none yet: --sample-every says when")
            .style(quiet())
            .block(Block::bordered().title(" sample "));
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let whole = format!("{prompt}{text}");
    let mut given = prompt.chars().count();
    let lines = whole.lines().map(|line| {
        let split = line.char_indices().nth(given).map_or(line.len(), |(place, _)| place);
        // The end of the line counts, too.
        given = given.saturating_sub(line.chars().count() + 1);
        Line::from(vec![Span::styled(plain(&line[..split]), bold), Span::raw(plain(&line[split..]))])
    });
    let title = format!(" sample after {} ", counted(*step as usize, "step"));
    Paragraph::new(Text::from_iter(lines)).wrap(Wrap { trim: false }).block(Block::bordered().title(title))
}

/// Whatever a model writes, it must not move the cursor.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn list(state: &State) -> Paragraph<'_> {
    let mut rows: Vec<(&str, String)> = Vec::new();
    if let Some(last) = &state.last {
        rows.push(("loss", format!("{:.4}", last.loss)));
        rows.extend(state.validated.map(|(_, loss)| ("validation", format!("{loss:.4}"))));
        rows.push(("tokens/s", grouped(last.tokens_per_s.round() as u64)));
        rows.push(("step", clock_short(last.seconds)));
        rows.push(("learning rate", format!("{:.2e}", last.learning_rate)));
        rows.extend(last.gradient_norm.map(|norm| ("gradient norm", format!("{norm:.3}"))));
        let usage = &last.usage;
        if let (Some(now), Some(most)) = (usage.resident_mib, usage.peak_mib) {
            rows.push(("memory", format!("{now:.0} MiB, {most:.0} at most")));
        }
        rows.extend(usage.busy_cores.map(|cores| ("busy cores", format!("{cores:.2}"))));
    }
    rows.extend(state.saved.map(|step| ("checkpoint", format!("after {}", counted(step as usize, "step")))));
    rows.push(("compiled", state.step.clone()));
    rows.push(("on", state.place.clone()));
    let line =
        |(name, value)| Line::from(vec![Span::styled(format!("{name:<14}"), quiet()), Span::raw(value)]);
    Paragraph::new(Text::from_iter(rows.into_iter().map(line))).block(Block::bordered().title(" figures "))
}

fn help(state: &State) -> Line<'_> {
    let keys = [
        ("q", "stop and keep a checkpoint"),
        ("p", if state.paused { "go on" } else { "pause" }),
        ("l", if state.log_scale { "linear scale" } else { "logarithmic scale" }),
    ];
    let key = |(key, what)| {
        [
            Span::styled(format!(" {key} "), Style::new().fg(Color::Cyan)),
            Span::styled(format!("{what}  "), quiet()),
        ]
    };
    Line::from_iter(keys.into_iter().flat_map(key))
}

/// The steps since the run was begun or resumed.
fn steps(state: &State) -> [f64; 2] {
    [state.begun as f64, (state.done as f64).max(state.begun as f64 + 1.0)]
}

/// The least and the largest, a little apart.
fn extent(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let [low, high] =
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], y| [low.min(y), high.max(y)]);
    match high - low {
        space if !space.is_finite() => [0.0, 1.0],
        ..1e-9 => [low - 0.5, low + 0.5],
        space => [low - 0.03 * space, high + 0.03 * space],
    }
}

fn quiet() -> Style {
    Style::new().fg(Color::DarkGray)
}

/// Hours, minutes and seconds.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

fn clock_short(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", 1e3 * seconds) } else { format!("{seconds:.2} s") }
}
