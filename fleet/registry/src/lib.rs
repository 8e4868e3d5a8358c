//! Who the edges of a fleet are: read from a registry that somebody already runs, and watched.
//!
//! A registry is a static file, etcd (a key for each edge, with a lease), or Kubernetes (EndpointSlices of a service).
//! [`fn@watch`] keeps a [`View`] of its members. It fails static: while the registry does not answer, or says what cannot
//! be, the view has the members that were known last, and says since when and why. [`publish`] keeps an edge's own key
//! in etcd, with the health and the load that the monitoring listener of its `atlas serve` tells.
//!
//! It elects nobody, agrees on nothing and stores nothing. It logs nothing: what it has to say is in the view, and in
//! [`Publication`]. What a registry sends gets a verdict, never a panic. Bounded by: [`placement::MEMBERS_MAX`] members,
//! [`REPLY_BYTES_MAX`] and [`LINE_BYTES_MAX`] of a reply, [`CALL_TIMEOUT`].

#![forbid(unsafe_code)]

mod backoff;
mod etcd;
mod file;
mod http;
mod kubernetes;
mod probe;
mod publish;
mod settings;
mod view;

use tokio::sync::watch::{self, Receiver};
use tokio::task::JoinHandle;

pub use http::{CALL_TIMEOUT, LINE_BYTES_MAX, REPLY_BYTES_MAX, RegistryError};
pub use publish::{GONE_AFTER, PROBE_INTERVAL, Publication, PublishSettings, publish};
pub use settings::{EtcdSettings, FileSettings, KubernetesSettings, RegistrySettings};
pub use view::{Freshness, View};

use view::ViewSender;

/// A registry that is watched until this is dropped.
#[derive(Debug)]
pub struct Watch {
    /// The newest view.
    pub view: Receiver<View>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches a registry. The first view knows nobody yet, [`Freshness::Waiting`].
///
/// # Errors
/// Settings that no registry could be reached with: a certificate that cannot be read, say. That the registry cannot be
/// reached is no error, but what the view says.
pub fn watch(settings: &RegistrySettings) -> Result<Watch, RegistryError> {
    let (sender, view) = watch::channel(View::default());
    let views = ViewSender::new(sender);
    let task = match settings {
        RegistrySettings::File(settings) => tokio::spawn(file::follow(settings.clone(), views)),
        RegistrySettings::Etcd(settings) => {
            tokio::spawn(etcd::follow(etcd::Etcd::new(settings)?, views))
        }
        RegistrySettings::Kubernetes(settings) => {
            tokio::spawn(kubernetes::follow(kubernetes::Api::new(settings)?, views))
        }
    };
    Ok(Watch { view, task })
}
