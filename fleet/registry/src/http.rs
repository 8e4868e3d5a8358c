//! What both registries need of HTTP: replies and lines that are bounded, and errors that say whom was asked.

use std::fs;
use std::path::Path;
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder, Identity, Response};
use thiserror::Error;
use tokio::time::timeout;

/// The longest that a registry may take to answer. Replies to a watch have no end.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Most bytes of a reply: a full fleet of the longest members, in base64.
pub const REPLY_BYTES_MAX: usize = 96 << 20;

/// Most bytes of a line of a watch's reply.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// Most of a refusal's text that is told.
const TOLD_CHARACTERS_MAX: usize = 200;

/// Why a registry could not be asked, or what is wrong with its answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Settings that cannot be used.
    #[error("{0}")]
    Settings(String),
    /// It did not answer.
    #[error("{0}")]
    Unreachable(String),
    /// It answered that it will not.
    #[error("{whom} says {status}: {text}")]
    Refused {
        /// Whom was asked.
        whom: String,
        /// The status of the reply.
        status: u16,
        /// The beginning of its text.
        text: String,
    },
    /// Its answer is longer than any that could be meant.
    #[error("the reply of {0} has more than {1} bytes")]
    TooLong(String, usize),
    /// Its answer cannot be read.
    #[error("the reply of {0} cannot be read: {1}")]
    Malformed(String, String),
    /// A watch ended, as it may at any time.
    #[error("{0} ended the watch{1}")]
    Ended(String, String),
}

/// A client that trusts these certificates only, if there are any, and shows an identity, if there is one.
pub(crate) fn client(ca: Option<&Path>, identity: Option<&Path>) -> Result<Client, RegistryError> {
    let read = |path: &Path| {
        fs::read(path)
            .map_err(|error| RegistryError::Settings(format!("{}: {error}", path.display())))
    };
    let wrong = |path: &Path, error: reqwest::Error| {
        RegistryError::Settings(format!("{}: {}", path.display(), chain(&error)))
    };
    let mut builder: ClientBuilder = Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CALL_TIMEOUT)
        // A watch whose other end is gone without a word is noticed by its socket.
        .tcp_keepalive(CALL_TIMEOUT)
        .tcp_keepalive_interval(CALL_TIMEOUT)
        .tcp_keepalive_retries(3);
    if let Some(path) = ca {
        let certificates =
            Certificate::from_pem_bundle(&read(path)?).map_err(|error| wrong(path, error))?;
        builder = builder.tls_certs_only(certificates);
    }
    if let Some(path) = identity {
        let identity = Identity::from_pem(&read(path)?).map_err(|error| wrong(path, error))?;
        builder = builder.identity(identity);
    }
    builder
        .build()
        .map_err(|error| RegistryError::Settings(chain(&error)))
}

/// An error with its causes: reqwest's own text does not say that a connection was refused.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

/// Nobody answered for as long as a call may take.
pub(crate) fn late(whom: &str) -> RegistryError {
    RegistryError::Unreachable(format!(
        "{whom} did not answer within {} s",
        CALL_TIMEOUT.as_secs()
    ))
}

/// A reply's body, if its status is one of success. All of it comes within [`CALL_TIMEOUT`].
pub(crate) async fn body(whom: &str, response: Response) -> Result<Vec<u8>, RegistryError> {
    let read = timeout(CALL_TIMEOUT, read_body(whom, response)).await;
    read.unwrap_or_else(|_| Err(late(whom)))
}

async fn read_body(whom: &str, mut response: Response) -> Result<Vec<u8>, RegistryError> {
    let status = response.status();
    let mut bytes = Vec::new();
    loop {
        let chunk = response.chunk().await;
        let Some(chunk) = chunk.map_err(|error| RegistryError::Unreachable(chain(&error)))? else {
            break;
        };
        bytes.extend_from_slice(&chunk);
        if bytes.len() > REPLY_BYTES_MAX {
            return Err(RegistryError::TooLong(whom.to_owned(), REPLY_BYTES_MAX));
        }
    }
    if status.is_success() {
        return Ok(bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    Err(RegistryError::Refused {
        whom: whom.to_owned(),
        status: status.as_u16(),
        text: text.trim().chars().take(TOLD_CHARACTERS_MAX).collect(),
    })
}

/// The lines of a reply that has no end.
#[derive(Debug)]
pub(crate) struct Lines {
    whom: String,
    response: Response,
    buffer: Vec<u8>,
}

impl Lines {
    /// Of a reply whose status is one of success.
    pub(crate) async fn of(whom: &str, response: Response) -> Result<Self, RegistryError> {
        if response.status().is_success() {
            return Ok(Self {
                whom: whom.to_owned(),
                response,
                buffer: Vec::new(),
            });
        }
        body(whom, response).await?;
        unreachable!("a status of no success is an error")
    }

    /// The next line, without its end. Whoever stops waiting for it loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, RegistryError> {
        let mut searched = 0;
        loop {
            let end = self.buffer[searched..]
                .iter()
                .position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let rest = self.buffer.split_off(searched + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(line);
            }
            searched = self.buffer.len();
            if searched > LINE_BYTES_MAX {
                return Err(RegistryError::TooLong(self.whom.clone(), LINE_BYTES_MAX));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) => return Err(RegistryError::Ended(self.whom.clone(), String::new())),
                Err(error) => {
                    let why = format!(": {}", chain(&error));
                    return Err(RegistryError::Ended(self.whom.clone(), why));
                }
            }
        }
    }
}
