//! `atlas top`: a live view of a server that runs, in the terminal, from what it tells at `--metrics`.
//!
//! It asks as any other client does, once in [`EVERY`], and changes nothing. It refuses to keep history: rates are those
//! between two answers, and a line of [`view::POINTS_MAX`] of them. Bounds: [`scrape::ANSWER_BYTES_MAX`] of an answer.

mod scrape;
mod view;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};

use crate::failure::Failure;
use crate::settings::cli::TopArgs;
use scrape::Sample;
pub(crate) use scrape::get;
use view::View;

/// From one question to the next. A server publishes its counters once a second.
const EVERY: Duration = Duration::from_secs(2);

/// Shows a server until somebody presses `q`.
///
/// # Errors
/// The server does not answer at first, or there is no terminal.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let mut before = ask(args.server)?;
    let mut terminal = ratatui::try_init().map_err(|error| {
        Failure::refused(
            format!("atlas top: {error}"),
            "call it in a terminal; for programs there is /metrics",
        )
    })?;
    let mut view = View::new(args.server, &before);
    let mut due = Instant::now() + EVERY;
    let outcome = loop {
        if let Err(error) = terminal.draw(|frame| view.draw(frame)) {
            break Err(Failure::Broken(format!("atlas top: {error}")));
        }
        match is_left(due) {
            Ok(true) => break Ok(()),
            Ok(false) => {}
            Err(error) => break Err(Failure::Broken(format!("atlas top: {error}"))),
        }
        if Instant::now() >= due {
            due = Instant::now() + EVERY;
            match ask(args.server) {
                Ok(now) => {
                    view.take(&before, &now);
                    before = now;
                }
                Err(failure) => view.tell(failure.to_string()),
            }
        }
    };
    ratatui::restore();
    outcome
}

fn ask(server: SocketAddr) -> Result<Sample, Failure> {
    Sample::take(server).map_err(|error| {
        Failure::refused(
            format!("http://{server}/metrics: {error}"),
            "start the server with --metrics, and give that address",
        )
    })
}

/// Waits for a key until `due`; whether it asks to leave.
fn is_left(due: Instant) -> std::io::Result<bool> {
    if !event::poll(due.saturating_duration_since(Instant::now()))? {
        return Ok(false);
    }
    let Event::Key(KeyEvent {
        code, modifiers, ..
    }) = event::read()?
    else {
        return Ok(false);
    };
    let is_interrupt = code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
    Ok(is_interrupt || matches!(code, KeyCode::Char('q') | KeyCode::Esc))
}
