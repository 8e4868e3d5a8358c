//! Ctrl-C and SIGTERM set a flag; waits look at it and fail, so that guards undo what was set up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Starts catching SIGINT, SIGTERM and SIGHUP. A second signal changes nothing: undoing is
/// bounded and must not be cut short.
pub fn catch() -> Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("catching signals")?;
    }
    Ok(())
}

/// Whether a signal arrived.
pub fn is_set() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails once a signal arrived.
pub fn check() -> Result<()> {
    if is_set() {
        bail!("interrupted");
    }
    Ok(())
}
