//! The loads. Each runs as a process of its own, in the client's namespace, on the client's core,
//! and prints what it found as one line of JSON.

mod channel;
pub(crate) mod handshakes;
mod sealed;
pub(crate) mod serve;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::cores::CoreTime;

/// Sleep between two sweeps over the connections: woken by each segment instead, a client would
/// slow the server's core with wake-ups.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest wait for a connection, or for bytes of a handshake or of the sample.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to load a server with.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Client {
    /// Long-lived connections, each object once
    Serve(serve::ClientOptions),
    /// Short connections, as many as will go
    Handshakes(handshakes::ClientOptions),
}

/// Runs one.
pub(crate) fn run(client: &Client) -> Result<()> {
    let found = match client {
        Client::Serve(options) => serde_json::to_string(&serve::run(options)?)?,
        Client::Handshakes(options) => serde_json::to_string(&handshakes::run(options)?)?,
    };
    println!("{found}");
    Ok(())
}

/// The cores a load watches.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cores {
    /// The server's core.
    #[arg(long)]
    pub(crate) server_core: usize,
    /// The client's core.
    #[arg(long)]
    pub(crate) client_core: usize,
}

impl Cores {
    /// The server's figures and the client's.
    fn now(&self) -> Result<(CoreTime, CoreTime)> {
        Ok((
            CoreTime::now(self.server_core)?,
            CoreTime::now(self.client_core)?,
        ))
    }
}

/// The bytes of a request.
fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: atlas\r\n\r\n")
}
