//! `atlas-steer publish`: the entry of the edge that this process runs beside, until it is told to end.

use std::future::Future;

use anyhow::Result;
use registry::{Publication, publish};
use tokio::sync::watch;

use crate::settings::Settings;

/// Publishes the edge of `[publish]`.
///
/// # Errors
/// Settings that cannot be used.
pub async fn run(settings: &Settings, stop: impl Future<Output = ()>) -> Result<()> {
    let (etcd, edge) = settings.publication()?;
    let (told, mut publication) = watch::channel(Publication::default());
    tracing::info!(
        "publishing {} when {} is ready",
        edge.member.name,
        edge.listener
    );
    let log = async {
        while publication.changed().await.is_ok() {
            say(&edge.member.name, &publication.borrow_and_update());
        }
    };
    tokio::select! {
        done = publish(etcd, &edge, &told, stop) => done?,
        () = log => {}
    }
    let last = told.borrow().clone();
    say(&edge.member.name, &last);
    Ok(())
}

fn say(name: &str, publication: &Publication) {
    match publication {
        Publication::Waiting => {}
        Publication::Listed { healthy: true } => tracing::info!("{name} is listed"),
        Publication::Listed { healthy: false } => {
            tracing::warn!(
                "{name} is listed as not healthy: its server does not answer, or is not well"
            );
        }
        Publication::Left(why) => tracing::info!("{name} is not listed: {why}"),
        Publication::Failed(why) => tracing::warn!("etcd could not be told of {name}: {why}"),
    }
}
