//! `train --ui`: a run in the terminal, with curves, the last sample and keys.
//!
//! A thread of its own draws and listens to keys, so that a long step delays neither; it draws ten times a second at most, and
//! the run only waits for it while a row is handed over. The terminal is as before whenever the view ends: at the end of the run,
//! upon an error, in a panic, and upon a second Ctrl-C.

mod curve;
mod state;
#[cfg(test)]
mod tests;
mod view;

use crate::common::error::CliError;
use kernfusion_lm::train::{Ending, Event, TrainingRun};
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType};
pub(crate) use state::State;
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time between two pictures.
const FRAME: Duration = Duration::from_millis(100);

/// Whether the terminal belongs to a view.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// Whether there is a terminal to draw on and to read keys from.
pub(crate) fn is_possible() -> bool {
    io::stdout().is_terminal() && io::stdin().is_terminal()
}

/// Gives the terminal back, if a view has it.
pub(crate) fn leave() {
    if ACTIVE.swap(false, Ordering::SeqCst) {
        ratatui::restore();
        // The view's own end would do it, but a second Ctrl-C does not wait for that.
        let _ = execute!(io::stdout(), Show);
    }
}

/// Does the steps that are left under a view that begins with `state`. Returns how the run ended and its last state.
pub(crate) fn drive(
    run: &mut TrainingRun,
    stop: &'static AtomicBool,
    state: State,
) -> Result<(Ending, State), CliError> {
    let view = View::open(state, stop)?;
    let ending = run.run(stop, &mut |event| view.show(event))?;
    Ok((ending, view.close()))
}

/// A view that is open; the terminal is given back when it is dropped.
struct View {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the run and the thread of the view have in common.
struct Shared {
    state: Mutex<State>,
    /// Wakes a run that was paused.
    woken: Condvar,
    stop: &'static AtomicBool,
}

impl View {
    fn open(state: State, stop: &'static AtomicBool) -> Result<View, CliError> {
        // Runs after the terminal was given back, which the hook that is set next does: the view must not draw over the message.
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            ACTIVE.store(false, Ordering::SeqCst);
            before(info);
        }));
        let failed = |cause| CliError::System { what: "cannot draw on the terminal", cause };
        let terminal = ratatui::try_init().map_err(failed)?;
        ACTIVE.store(true, Ordering::SeqCst);
        // Some terminals have one screen alone. What the library has for it asks where the cursor is, which not all of them tell;
        // and whatever does not come of it, the first picture covers most.
        let _ = execute!(io::stdout(), Clear(ClearType::All));
        let shared = Arc::new(Shared { state: Mutex::new(state), woken: Condvar::new(), stop });
        let others = shared.clone();
        // Dropped upon an error, it gives the terminal back.
        let mut view = View { shared, thread: None };
        let thread = std::thread::Builder::new().name("view".into());
        view.thread = Some(thread.spawn(move || others.draw(terminal)).map_err(failed)?);
        Ok(view)
    }

    /// Hands an event over, and holds the run while it is paused.
    fn show(&self, event: Event<'_>) {
        let mut state = self.shared.state();
        state.take(event);
        while state.paused && ACTIVE.load(Ordering::SeqCst) && !self.shared.stop.load(Ordering::Relaxed) {
            // Wakes now and then, since Ctrl-C may come as a signal, which does not wake this thread.
            let waited = self.shared.woken.wait_timeout(state, FRAME);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives the terminal back.
    fn close(mut self) -> State {
        self.end();
        self.shared.state().clone()
    }

    fn end(&mut self) {
        leave();
        if let Some(thread) = self.thread.take() {
            // A view that has failed has said so; the run is whole without it.
            let _ = thread.join();
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// A state is plain figures: still whole if a thread panicked while it held them.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws and listens until the view ends. A terminal that has gone away ends it, too, and the run goes on.
    fn draw(&self, mut terminal: DefaultTerminal) {
        while ACTIVE.load(Ordering::SeqCst) {
            let state = self.state().clone();
            let drawn = terminal.draw(|frame| view::draw(frame, &state)).map(|_| ());
            if drawn.and_then(|()| self.listen()).is_err() {
                leave();
            }
        }
    }

    /// Takes the keys of the time until the next picture.
    fn listen(&self) -> io::Result<()> {
        if event::poll(FRAME)?
            && let event::Event::Key(key) = event::read()?
        {
            self.press(key);
        }
        Ok(())
    }

    fn press(&self, key: KeyEvent) {
        let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('q') => self.stop(),
            // Raw terminals send no signal.
            _ if control_c && self.stop.load(Ordering::Relaxed) => {
                leave();
                std::process::exit(crate::training::stop::exit_code().into());
            }
            _ if control_c => self.stop(),
            KeyCode::Char('p' | ' ') => {
                let mut state = self.state();
                state.paused = !state.paused;
                self.woken.notify_all();
            }
            KeyCode::Char('l') => {
                let mut state = self.state();
                state.log_scale = !state.log_scale;
            }
            _ => {}
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.state().stopping = true;
        self.woken.notify_all();
    }
}
