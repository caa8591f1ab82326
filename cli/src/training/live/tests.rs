//! The view of a recorded run, and what the keys do.

use super::*;
use crate::report::Description;
use kernfusion::models::preset;
use kernfusion_lm::record::{Settings, TextRecord};
use kernfusion_lm::text::Corpus;
use kernfusion_lm::train::Row;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::path::Path;

/// A state that has taken the rows of `recorded.jsonl`.
fn recorded() -> State {
    let preset = preset("tiny").unwrap();
    let about = Description {
        config: preset.config.clone(),
        settings: Settings { steps: 120, ..Settings::default() },
        text: TextRecord::new(&Corpus::from_text("a text", "a text ".repeat(9)).unwrap(), None),
        machine: Default::default(),
        place: "2 threads".into(),
        products: "f32".into(),
        compile_s: 0.5,
        step: "104 kernels, 250 MiB moved".into(),
    };
    let mut state = State::new(&about, Path::new("runs/tiny"), 0);
    for row in Row::read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/training/live/recorded.jsonl"))
        .unwrap()
    {
        state.take(Event::Row(&row));
    }
    state.take(Event::Saved { step: 60 });
    state
}

/// The text of a picture.
fn picture(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(|y| format!("{}\n", line(y).trim_end())).collect()
}

#[test]
fn the_view_of_a_recorded_run() {
    let state = recorded();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/training/live/view.txt");
    let pictures =
        picture(&state, 110, 32) + &picture(&State { log_scale: true, paused: true, ..state }, 80, 24);
    if std::env::var_os("KERNFUSION_BLESS").is_some() {
        std::fs::write(&file, &pictures).unwrap();
    }
    assert_eq!(pictures, std::fs::read_to_string(&file).unwrap(), "KERNFUSION_BLESS=1 takes the new picture");
}

#[test]
fn any_terminal_and_any_text_have_a_picture() {
    let mut state = recorded();
    state.sample = Some((3, "a\n".into(), "b\u{1b}[2J\tä\r\n日本".into()));
    for (width, height) in [(1, 1), (3, 40), (20, 5), (300, 9), (80, 24)] {
        let picture = picture(&state, width, height);
        assert!(!picture.contains('\u{1b}') && !picture.contains('\t'), "{picture}");
    }
    let empty = State { steps: 0, ..State { last: None, sample: None, ..recorded() } };
    assert!(picture(&empty, 100, 30).contains("none yet"));
}

#[test]
fn keys_stop_pause_and_change_the_scale() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let shared = Shared { state: Mutex::new(recorded()), woken: Condvar::new(), stop: &STOP };
    let press = |code| shared.press(KeyEvent::new(code, KeyModifiers::NONE));
    press(KeyCode::Char('p'));
    press(KeyCode::Char('l'));
    press(KeyCode::Char('x'));
    assert!(shared.state().paused && shared.state().log_scale && !STOP.load(Ordering::Relaxed));
    press(KeyCode::Char(' '));
    assert!(!shared.state().paused);
    shared.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(shared.state().stopping && STOP.load(Ordering::Relaxed));
}
