//! SIGINT, SIGTERM and SIGHUP are remembered; waits look at it and fail, so that guards undo what
//! was set up.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};

/// The signal that arrived last; 0: none.
static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Starts catching SIGINT, SIGTERM and SIGHUP. A second signal changes nothing: undoing is
/// bounded and must not be cut short.
pub fn catch() -> Result<()> {
    let arrived = SIGNAL.get_or_init(Arc::default);
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        let number = usize::try_from(signal).context("a signal's number is positive")?;
        signal_hook::flag::register_usize(signal, Arc::clone(arrived), number)
            .context("catching signals")?;
    }
    Ok(())
}

/// Whether a signal arrived.
pub fn is_set() -> bool {
    exit_code().is_some()
}

/// What a program that a signal ended exits with: 128 plus the signal's number, as shells report
/// it. `None`: no signal arrived.
pub fn exit_code() -> Option<u8> {
    let number = SIGNAL.get()?.load(Ordering::Relaxed);
    u8::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .map(|number| 128 + number)
}

/// Fails once a signal arrived.
pub fn check() -> Result<()> {
    if is_set() {
        bail!("interrupted");
    }
    Ok(())
}

/// A flag that SIGINT and SIGTERM set, for an instrument that sets nothing up: a second one ends the process.
///
/// # Errors
/// What the kernel refuses.
pub fn stop_at_signal() -> Result<Arc<AtomicBool>> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // In this order: the second signal finds the flag set.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&is_stopped))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&is_stopped)))
            .context("listening for interrupts")?;
    }
    Ok(is_stopped)
}
