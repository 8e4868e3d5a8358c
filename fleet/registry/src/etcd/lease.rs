//! An edge's own key, and the lease that it goes with when its publisher dies.

use std::time::Duration;

use placement::{Member, State};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::client::{Etcd, encoded, number};
use crate::http::RegistryError;

/// A change of the load that is worth a write.
const LOAD_STEP: f64 = 0.05;

#[derive(Debug, Deserialize)]
struct Granted {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kept {
    result: KeptResult,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeptResult {
    /// Missing, so 0, if there is no such lease any more.
    #[serde(rename = "TTL", deserialize_with = "number")]
    ttl: i64,
}

/// What of an edge is in etcd.
#[derive(Debug)]
pub(crate) struct Lease<'a> {
    etcd: &'a Etcd,
    ttl: Duration,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    id: i64,
    kept: Instant,
    written: Option<Member>,
}

impl<'a> Lease<'a> {
    pub(crate) fn new(etcd: &'a Etcd, ttl: Duration) -> Self {
        Self {
            etcd,
            ttl,
            held: None,
        }
    }

    /// Brings etcd to say this of the edge, or nothing; keeps the lease when a third of its time is over.
    ///
    /// An error leaves it as far as it came: the next call goes on from there.
    pub(crate) async fn bring_to(&mut self, wanted: Option<&Member>) -> Result<(), RegistryError> {
        let Some(member) = wanted else {
            return self.leave().await;
        };
        if self
            .held
            .as_ref()
            .is_some_and(|held| held.kept.elapsed() >= self.ttl / 3)
        {
            self.keep().await?;
        }
        let id = match &self.held {
            Some(held) => held.id,
            None => self.grant().await?,
        };
        let held = self
            .held
            .as_mut()
            .expect("invariant: it has just been granted");
        if held
            .written
            .as_ref()
            .is_some_and(|it| !is_worth_a_write(it, member))
        {
            return Ok(());
        }
        match put(self.etcd, id, member).await {
            Ok(()) => {
                held.written = Some(member.clone());
                Ok(())
            }
            Err(error) => {
                // A lease that ended meanwhile is one reason. Another is granted next time.
                if matches!(error, RegistryError::Refused { .. }) {
                    self.held = None;
                }
                Err(error)
            }
        }
    }

    /// Takes the edge out, if it is in: revoking the lease deletes the key.
    ///
    /// Before that it says that it drains. Whoever does not believe a list that is empty all at once, or loses etcd in
    /// this moment, knows it as one that players are not sent to.
    pub(crate) async fn leave(&mut self) -> Result<(), RegistryError> {
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        if let Some(written) = &mut held.written
            && written.state != State::Draining
        {
            let draining = Member {
                state: State::Draining,
                ..written.clone()
            };
            match put(self.etcd, held.id, &draining).await {
                Ok(()) => *written = draining,
                Err(RegistryError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let question = json!({"ID": held.id.to_string()});
        match self.etcd.call::<Value>("/v3/lease/revoke", &question).await {
            // It refuses to revoke what has ended.
            Ok(_) | Err(RegistryError::Refused { .. }) => {
                self.held = None;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn grant(&mut self) -> Result<i64, RegistryError> {
        let question = json!({"TTL": self.ttl.as_secs().to_string()});
        let kept = Instant::now();
        let Granted { id } = self.etcd.call("/v3/lease/grant", &question).await?;
        self.held = Some(Held {
            id,
            kept,
            written: None,
        });
        Ok(id)
    }

    async fn keep(&mut self) -> Result<(), RegistryError> {
        let Some(held) = &mut self.held else {
            return Ok(());
        };
        let question = json!({"ID": held.id.to_string()});
        let kept = Instant::now();
        let answer: Kept = self.etcd.call("/v3/lease/keepalive", &question).await?;
        if answer.result.ttl > 0 {
            held.kept = kept;
        } else {
            // It ended while etcd, or we, were away.
            self.held = None;
        }
        Ok(())
    }
}

async fn put(etcd: &Etcd, lease: i64, member: &Member) -> Result<(), RegistryError> {
    let question = json!({
        "key": encoded(format!("{}{}", etcd.prefix, member.name)),
        "value": encoded(member.to_json()),
        "lease": lease.to_string(),
    });
    etcd.call::<Value>("/v3/kv/put", &question)
        .await
        .map(|_| ())
}

fn is_worth_a_write(old: &Member, new: &Member) -> bool {
    let same = Member {
        load: old.load,
        ..new.clone()
    };
    same != *old || (old.load - new.load).abs() >= LOAD_STEP
}
