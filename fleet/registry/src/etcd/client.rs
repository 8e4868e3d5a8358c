//! Calls to etcd: one endpoint after the other until one answers, with a token where it wants one.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, Response, StatusCode};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::http::{CALL_TIMEOUT, Lines, RegistryError, body, chain, client, late};
use crate::settings::EtcdSettings;

/// Most endpoints of a cluster.
const ENDPOINTS_MAX: usize = 16;

/// A cluster, and how to be let in.
#[derive(Debug)]
pub(crate) struct Etcd {
    client: Client,
    endpoints: Vec<String>,
    /// The endpoint that answered last.
    current: AtomicUsize,
    /// What the keys of edges begin with.
    pub(crate) prefix: String,
    user: Option<(String, PathBuf)>,
    token: Mutex<Option<String>>,
}

/// What every reply begins with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    #[serde(deserialize_with = "number")]
    pub(crate) revision: i64,
}

/// A key and its value.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    pub(crate) key: Vec<u8>,
    #[serde(deserialize_with = "bytes")]
    pub(crate) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(crate) mod_revision: i64,
}

/// The reply to a range.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Range {
    pub(crate) header: Header,
    pub(crate) kvs: Vec<KeyValue>,
    #[serde(deserialize_with = "number")]
    pub(crate) count: i64,
}

/// A number of 64 bits, which the gateway writes as a string.
pub(crate) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Text(String),
        Number(i64),
    }
    match Number::deserialize(deserializer)? {
        Number::Text(text) => text.parse().map_err(D::Error::custom),
        Number::Number(number) => Ok(number),
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    STANDARD.decode(text).map_err(D::Error::custom)
}

/// Bytes as the gateway takes them.
pub(crate) fn encoded(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The end of the range of all keys that begin so: the prefix with its last byte one larger.
pub(crate) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // To the end of all keys.
    vec![0]
}

impl Etcd {
    pub(crate) fn new(settings: &EtcdSettings) -> Result<Self, RegistryError> {
        let wrong = |why: String| Err(RegistryError::Settings(why));
        if !(1..=ENDPOINTS_MAX).contains(&settings.endpoints.len()) {
            let count = settings.endpoints.len();
            return wrong(format!(
                "endpoints: {count} are given, 1 to {ENDPOINTS_MAX} are possible"
            ));
        }
        let is_url = |it: &&String| it.starts_with("http://") || it.starts_with("https://");
        if let Some(other) = settings.endpoints.iter().find(|it| !is_url(it)) {
            return wrong(format!(
                "endpoints: {other:?} is not http://HOST:PORT or https://HOST:PORT"
            ));
        }
        if settings.prefix.is_empty() {
            return wrong("prefix: it is empty, so every key would be an edge's".to_owned());
        }
        let user = match (&settings.user, &settings.password_file) {
            (Some(user), Some(file)) => Some((user.clone(), file.clone())),
            (None, None) => None,
            _ => return wrong("user and password_file go together".to_owned()),
        };
        let is_plain = |it: &&String| !it.starts_with("https://");
        if user.is_some()
            && let Some(plain) = settings.endpoints.iter().find(is_plain)
        {
            return wrong(format!(
                "user: {plain:?} is no https://, and the password would be readable on its way"
            ));
        }
        let endpoints = settings.endpoints.iter();
        Ok(Self {
            client: client(settings.ca.as_deref(), settings.identity.as_deref())?,
            endpoints: endpoints
                .map(|it| it.trim_end_matches('/').to_owned())
                .collect(),
            current: AtomicUsize::new(0),
            prefix: settings.prefix.clone(),
            user,
            token: Mutex::new(None),
        })
    }

    /// Asks, and reads the reply.
    pub(crate) async fn call<A: DeserializeOwned>(
        &self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<A, RegistryError> {
        let (whom, response) = self.send(path, question).await?;
        let bytes = body(&whom, response).await?;
        let read = serde_json::from_slice(&bytes);
        read.map_err(|error| RegistryError::Malformed(whom, error.to_string()))
    }

    /// Asks for a reply that has no end.
    pub(crate) async fn stream(
        &self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<Lines, RegistryError> {
        let (whom, response) = self.send(path, question).await?;
        Lines::of(&whom, response).await
    }

    /// The edges' keys: at most so many, and with which other members of the question.
    pub(crate) async fn range(
        &self,
        mut question: serde_json::Value,
    ) -> Result<Range, RegistryError> {
        question["key"] = encoded(&self.prefix).into();
        question["range_end"] = encoded(range_end(&self.prefix)).into();
        self.call("/v3/kv/range", &question).await
    }

    /// The head of a reply of the first endpoint that has one, with the endpoint.
    async fn send(
        &self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<(String, Response), RegistryError> {
        if self.user.is_some() && self.token.lock().await.is_none() {
            self.authenticate().await?;
        }
        let (whom, response) = self.try_endpoints(path, question).await?;
        // A token ends after some minutes.
        let is_refused = matches!(
            response.status(),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
        );
        if self.user.is_some() && is_refused {
            self.authenticate().await?;
            return self.try_endpoints(path, question).await;
        }
        Ok((whom, response))
    }

    async fn try_endpoints(
        &self,
        path: &str,
        question: &impl Serialize,
    ) -> Result<(String, Response), RegistryError> {
        let question = serde_json::to_vec(question).expect("invariant: questions have JSON");
        let token = self.token.lock().await.clone();
        let first = self.current.load(Ordering::Relaxed);
        let mut errors = Vec::new();
        for offset in 0..self.endpoints.len() {
            let index = (first + offset) % self.endpoints.len();
            let endpoint = &self.endpoints[index];
            let mut request = self.client.post(format!("{endpoint}{path}"));
            if let Some(token) = &token {
                request = request.header("authorization", token);
            }
            match timeout(CALL_TIMEOUT, request.body(question.clone()).send()).await {
                // One that has no leader says so, another may have one.
                Ok(Ok(response)) if response.status() != StatusCode::SERVICE_UNAVAILABLE => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok((endpoint.clone(), response));
                }
                Ok(Ok(response)) => errors.push(format!("{endpoint} says {}", response.status())),
                Ok(Err(error)) => errors.push(chain(&error)),
                Err(_) => errors.push(late(endpoint).to_string()),
            }
        }
        Err(RegistryError::Unreachable(errors.join("; ")))
    }

    async fn authenticate(&self) -> Result<(), RegistryError> {
        #[derive(Deserialize)]
        struct Answer {
            token: String,
        }
        let Some((user, file)) = &self.user else {
            return Ok(());
        };
        let password = fs::read_to_string(file);
        let password = password
            .map_err(|error| RegistryError::Settings(format!("{}: {error}", file.display())))?;
        let question = json!({"name": user, "password": password.trim_end_matches(['\r', '\n'])});
        *self.token.lock().await = None;
        let (whom, response) = self
            .try_endpoints("/v3/auth/authenticate", &question)
            .await?;
        let bytes = body(&whom, response).await?;
        let answer: Answer = serde_json::from_slice(&bytes)
            .map_err(|error| RegistryError::Malformed(whom, error.to_string()))?;
        *self.token.lock().await = Some(answer.token);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_an_end() {
        assert_eq!(range_end("/atlas/edges/"), b"/atlas/edges0");
        assert_eq!(range_end("a\u{7f}"), b"a\x80");
        assert_eq!(range_end(""), [0]);
    }

    #[test]
    fn replies_are_read_as_the_gateway_writes_them() {
        let text = r#"{"header":{"cluster_id":"14841639068965178418","revision":"7"},
            "kvs":[{"key":"L2E=","value":"eHk=","mod_revision":"6","lease":"758"}],"count":"1"}"#;
        let range: Range = serde_json::from_str(text).unwrap();
        assert_eq!((range.header.revision, range.count), (7, 1));
        let [pair] = &range.kvs[..] else {
            panic!("{range:?}");
        };
        assert_eq!(
            (&pair.key[..], &pair.value[..], pair.mod_revision),
            (&b"/a"[..], &b"xy"[..], 6)
        );
        let empty: Range = serde_json::from_str(r#"{"header":{"revision":3}}"#).unwrap();
        assert_eq!((empty.header.revision, empty.kvs.len()), (3, 0));
        for wrong in [
            r#"{"count":"x"}"#,
            r#"{"kvs":[{"key":"!"}]}"#,
            "[",
            r#"{"kvs":{}}"#,
        ] {
            assert!(serde_json::from_str::<Range>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_that_reach_nobody_are_refused() {
        let settings = |endpoints: &[&str], prefix: &str| EtcdSettings {
            endpoints: endpoints.iter().map(|it| (*it).to_owned()).collect(),
            prefix: prefix.to_owned(),
            ca: None,
            identity: None,
            user: None,
            password_file: None,
        };
        for (settings, told) in [
            (settings(&[], "/a"), "endpoints: 0"),
            (settings(&["127.0.0.1:2379"], "/a"), "\"127.0.0.1:2379\""),
            (settings(&["http://a"], ""), "prefix"),
            (
                EtcdSettings {
                    user: Some("me".into()),
                    ..settings(&["http://a"], "/a")
                },
                "go together",
            ),
            (
                EtcdSettings {
                    user: Some("me".into()),
                    password_file: Some("/nonexistent".into()),
                    ..settings(&["https://a", "http://b"], "/a")
                },
                "\"http://b\" is no https://",
            ),
            (
                EtcdSettings {
                    ca: Some("/nonexistent/ca.pem".into()),
                    ..settings(&["http://a"], "/a")
                },
                "/nonexistent/ca.pem: No such file",
            ),
        ] {
            let error = Etcd::new(&settings).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
    }
}
