//! An edge's own entry in etcd: there while the edge can be used, with its health and load.
//!
//! | The server | The entry |
//! |---|---|
//! | is ready | there, healthy, with its load |
//! | is not ready but well: it was told to end | draining and then gone, at once, before the server closes anything |
//! | is not well, or silent three times in a row | there, not healthy: players go elsewhere, titles stay |
//! | is so for ten minutes | gone: its share of the titles is fetched by others |
//!
//! If this process dies, the entry goes when its lease ends.

use std::future::Future;
use std::time::Duration;

use placement::Member;
use tokio::sync::watch::Sender;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::backoff::Backoff;
use crate::etcd::{Etcd, Lease};
use crate::http::RegistryError;
use crate::probe::{Probe, Seen};
use crate::settings::EtcdSettings;

/// How often the server is looked at.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a server may be sick before its share is given to others.
pub const GONE_AFTER: Duration = Duration::from_secs(600);

/// How often in a row a server may not answer before it counts as sick.
const SILENT_MAX: u32 = 3;

/// What is published.
#[derive(Clone, Debug)]
pub struct PublishSettings {
    /// The edge. Its health, state and load are found out.
    pub member: Member,
    /// `HOST:PORT` of its server's monitoring listener.
    pub listener: String,
    /// What it can send, bits a second: a load of 1.
    pub send_bits_a_second: u64,
    /// How long the entry outlives this process, 2 s or more.
    pub lease: Duration,
}

/// What etcd says of the edge, as far as is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Publication {
    /// Nothing yet: the server was not ready so far.
    #[default]
    Waiting,
    /// The edge is listed, healthy or not.
    Listed {
        /// Whether players are sent to it.
        healthy: bool,
    },
    /// The edge is not listed, for this reason.
    Left(String),
    /// etcd could not be told, for this reason.
    Failed(String),
}

/// What is wanted of the entry, by what was seen.
#[derive(Debug)]
struct Policy {
    silent: u32,
    /// Since when the server was not seen ready.
    sick_since: Option<Instant>,
    was_ready: bool,
}

/// What the entry should be.
#[derive(Clone, PartialEq, Debug)]
enum Wanted {
    /// As it is.
    Unchanged,
    Listed {
        healthy: bool,
        load: f64,
    },
    Gone(&'static str),
}

impl Policy {
    fn new() -> Self {
        Self {
            silent: 0,
            sick_since: None,
            was_ready: false,
        }
    }

    fn decide(&mut self, now: Instant, seen: &Seen) -> Wanted {
        match seen {
            Seen::Ready(load) => {
                *self = Self {
                    was_ready: true,
                    ..Self::new()
                };
                return Wanted::Listed {
                    healthy: true,
                    load: *load,
                };
            }
            Seen::Leaving => {
                *self = Self::new();
                return Wanted::Gone("the server was told to end");
            }
            Seen::Silent(_) if self.silent + 1 < SILENT_MAX => {
                self.silent += 1;
                return Wanted::Unchanged;
            }
            Seen::Silent(_) | Seen::Sick => {}
        }
        if !self.was_ready {
            return Wanted::Unchanged;
        }
        let since = *self.sick_since.get_or_insert(now);
        if now - since >= GONE_AFTER {
            self.was_ready = false;
            return Wanted::Gone("the server was not well for ten minutes");
        }
        Wanted::Listed {
            healthy: false,
            load: 0.0,
        }
    }
}

/// Publishes an edge until `stop` is ready; then the entry is taken out.
///
/// # Errors
/// Settings that cannot be used. That etcd or the server does not answer is no error, but sent to `publications`.
pub async fn publish(
    etcd: &EtcdSettings,
    settings: &PublishSettings,
    publications: &Sender<Publication>,
    stop: impl Future<Output = ()>,
) -> Result<(), RegistryError> {
    settings
        .member
        .check()
        .map_err(|error| RegistryError::Settings(error.to_string()))?;
    let etcd = Etcd::new(etcd)?;
    let mut probe = Probe::new(&settings.listener, settings.send_bits_a_second)?;
    let mut lease = Lease::new(&etcd, settings.lease);
    tokio::select! {
        () = stop => {}
        () = keep(&mut probe, &mut lease, settings, publications) => {}
    }
    // Once more: a key that stays until its lease ends sends players to a server that is gone.
    if let Err(error) = lease.leave().await {
        publications.send_replace(Publication::Failed(error.to_string()));
    } else {
        publications.send_replace(Publication::Left(
            "the publisher was told to end".to_owned(),
        ));
    }
    Ok(())
}

async fn keep(
    probe: &mut Probe,
    lease: &mut Lease<'_>,
    settings: &PublishSettings,
    publications: &Sender<Publication>,
) {
    let mut policy = Policy::new();
    let mut wanted: Option<Member> = None;
    let mut publication = Publication::Waiting;
    let mut backoff = Backoff::new();
    let mut ticks = interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let seen = probe.look().await;
        match policy.decide(Instant::now(), &seen) {
            Wanted::Unchanged => {}
            Wanted::Listed { healthy, load } => {
                wanted = Some(Member {
                    healthy,
                    load,
                    ..settings.member.clone()
                });
                publication = Publication::Listed { healthy };
            }
            Wanted::Gone(why) => {
                if wanted.take().is_some() {
                    publication = Publication::Left(why.to_owned());
                }
            }
        }
        let done = match lease.bring_to(wanted.as_ref()).await {
            Ok(()) => publication.clone(),
            Err(error) => Publication::Failed(error.to_string()),
        };
        let failed = matches!(done, Publication::Failed(_));
        publications.send_if_modified(|old| {
            let is_new = *old != done;
            *old = done;
            is_new
        });
        if failed {
            sleep(backoff.wait()).await;
        } else {
            backoff.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_leaves_when_it_is_told_to_and_not_when_it_is_sick_for_a_moment() {
        let mut policy = Policy::new();
        let start = Instant::now();
        let silent = || Seen::Silent("refused".to_owned());
        let listed = |healthy, load| Wanted::Listed { healthy, load };
        // Before it was ready it is not listed.
        for seen in [silent(), silent(), silent(), Seen::Sick] {
            assert_eq!(policy.decide(start, &seen), Wanted::Unchanged);
        }
        assert_eq!(policy.decide(start, &Seen::Ready(0.25)), listed(true, 0.25));
        assert_eq!(policy.decide(start, &silent()), Wanted::Unchanged);
        assert_eq!(policy.decide(start, &silent()), Wanted::Unchanged);
        assert_eq!(policy.decide(start, &Seen::Ready(0.5)), listed(true, 0.5));
        assert_eq!(policy.decide(start, &silent()), Wanted::Unchanged);
        assert_eq!(policy.decide(start, &silent()), Wanted::Unchanged);
        assert_eq!(policy.decide(start, &silent()), listed(false, 0.0));
        let almost = start + GONE_AFTER - Duration::from_secs(1);
        assert_eq!(policy.decide(almost, &Seen::Sick), listed(false, 0.0));
        assert!(matches!(
            policy.decide(start + GONE_AFTER, &Seen::Sick),
            Wanted::Gone(_)
        ));
        assert_eq!(
            policy.decide(start + GONE_AFTER, &Seen::Sick),
            Wanted::Unchanged
        );
        assert_eq!(
            policy.decide(start + GONE_AFTER, &Seen::Ready(0.0)),
            listed(true, 0.0)
        );
        assert!(matches!(
            policy.decide(start, &Seen::Leaving),
            Wanted::Gone(_)
        ));
        // What is silent once it has left comes back only when it is ready.
        for _ in 0..5 {
            assert_eq!(policy.decide(start, &silent()), Wanted::Unchanged);
        }
    }
}
