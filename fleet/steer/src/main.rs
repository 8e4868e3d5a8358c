//! The `atlas-steer` binary: command line, signals, log.

#![forbid(unsafe_code)]
#![allow(
    rustdoc::bare_urls,
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "comments of arguments are the text of --help"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use registry::{Freshness, View};
use steer::metrics::count;
use steer::serve::{Service, run};
use steer::settings::Settings;
use steer::share::{Share, holders_of};
use steer::steering::Steering;
use steer::write::Writer;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::Receiver;
use tokio::task::spawn_blocking;

/// Tells players which edges of a fleet to ask, and publishes edges
///
/// The edges are those that a registry lists: a file, etcd or Kubernetes. Which of them has a title follows from their
/// names and capacities alone, so every filler and every atlas-steer computes the same. While the registry is down the
/// edges that were known last are used, and /health says so.
///
///   members.json    {"version": 1, "members": [{"name": "e1", "url": "https://e1.example", "capacity_bytes": 8000000000000}]}
///   steer.toml      [registry]
///                   kind = "file"
///                   path = "members.json"
///
///   atlas-steer serve steer.toml &
///   curl 'http://127.0.0.1:8090/resolve?path=/film/master.m3u8'
///   curl 'http://127.0.0.1:8090/steer?path=/film/master.m3u8'
///
/// In the playlist:  #EXT-X-CONTENT-STEERING:SERVER-URI="https://steer.example/steer?path=/film/master.m3u8"
/// In the MPD:       <ContentSteering defaultServiceLocation=".">https://steer.example/steer?path=/film/a.mpd</ContentSteering>
///                   <BaseURL serviceLocation=".">https://origin.example/film/</BaseURL>
#[derive(Debug, Parser)]
#[command(name = "atlas-steer", version, verbatim_doc_comment)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answers players: /steer, /resolve, /redirect; and /health, /ready, /metrics
    Serve {
        /// The settings, TOML
        file: PathBuf,
        /// Also writes the manifests as files into this directory
        #[arg(long, value_name = "DIR")]
        write: Option<PathBuf>,
    },
    /// Writes the manifests as files, which Atlas serves: DIR/steering.json, DIR/TITLE/steering.json
    Write {
        /// The settings, TOML
        file: PathBuf,
        /// The directory, which Atlas serves; not the target of atlas-fill, which would remove the files
        directory: PathBuf,
        /// Ends after the first time
        #[arg(long)]
        once: bool,
    },
    /// Writes the lines of the library's manifest that the edge of [publish] holds: what its atlas-fill should want
    Share {
        /// The settings, TOML
        file: PathBuf,
        /// The library's manifest, JSON lines as of atlas-fill; it is read again when it is another file
        library: PathBuf,
        /// The file to write, whose name is `manifest` of atlas-fill
        out: PathBuf,
        /// Ends after the first time
        #[arg(long)]
        once: bool,
    },
    /// Keeps the entry of the edge beside it in etcd: its health, its load; takes it out before the server ends
    Publish {
        /// The settings, TOML
        file: PathBuf,
    },
    /// Says whether the settings can be used
    Check {
        /// The settings, TOML
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(false)
        .init();
    let settings = match Settings::read(arguments.command.file()) {
        Ok(settings) => settings,
        Err(error) => {
            tracing::error!("{error:#}");
            return ExitCode::from(SETTINGS_WRONG);
        }
    };
    match execute(&settings, arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The exit code of settings that will be wrong the next time, as that of `atlas`. Others are 1.
const SETTINGS_WRONG: u8 = 2;

impl Command {
    /// The settings.
    fn file(&self) -> &Path {
        match self {
            Self::Serve { file, .. }
            | Self::Write { file, .. }
            | Self::Share { file, .. }
            | Self::Publish { file }
            | Self::Check { file } => file,
        }
    }
}

fn execute(settings: &Settings, command: Command) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        match command {
            Command::Serve { write, .. } => serve(settings, write).await,
            Command::Write {
                directory, once, ..
            } => write(settings, directory, once).await,
            Command::Share {
                library, out, once, ..
            } => {
                let edge = settings.edge()?;
                let share = Share::new(&library, &out, edge, settings.layout.clone());
                share_for_ever(settings, share, once).await
            }
            Command::Publish { .. } => steer::publish::run(settings, told_to_end()?).await,
            Command::Check { file } => {
                registry::watch(&settings.registry)?;
                Steering::new(settings)?;
                tracing::info!("{} can be used", file.display());
                Ok(())
            }
        }
    });
    // A thread that waits for a file of a machine that is gone does not hold the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

/// Ready at SIGTERM or SIGINT.
fn told_to_end() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

async fn serve(settings: &Settings, directory: Option<PathBuf>) -> Result<()> {
    let stop = told_to_end()?;
    let steering = Arc::new(Steering::new(settings)?);
    let writer = writer(settings, directory)?;
    let watch = registry::watch(&settings.registry)?;
    let listen = settings.steer.listen;
    let listener = TcpListener::bind(listen).await;
    let listener = listener.with_context(|| format!("listening at {listen}"))?;
    let service = Arc::new(Service::new(Arc::clone(&steering), &settings.steer));
    tracing::info!("serving at http://{}", listener.local_addr()?);
    let following = tokio::spawn(follow(
        watch.view.clone(),
        Arc::clone(&steering),
        writer,
        Some(Arc::clone(&service)),
    ));
    let delay = Duration::from_secs(settings.steer.shutdown_delay_seconds);
    let leaving = Arc::clone(&service);
    let stop = async move {
        stop.await;
        leaving.is_leaving.store(true, Ordering::Relaxed);
        tracing::info!(
            "told to end: /ready is 503, the end is in {} s",
            delay.as_secs()
        );
        tokio::time::sleep(delay).await;
    };
    run(listener, service, &settings.steer, stop).await;
    following.abort();
    Ok(())
}

async fn write(settings: &Settings, directory: PathBuf, once: bool) -> Result<()> {
    let stop = told_to_end()?;
    let steering = Arc::new(Steering::new(settings)?);
    let writer = writer(settings, Some(directory))?;
    let mut watch = registry::watch(&settings.registry)?;
    if once {
        let heard = |view: &View| view.freshness != Freshness::Waiting;
        let view = watch.view.wait_for(heard).await?.clone();
        if let Freshness::LastKnown { why, .. } = &view.freshness {
            anyhow::bail!("nothing is written: {why}");
        }
        steering.take(&view);
        return write_now(writer, steering).await;
    }
    tokio::select! {
        () = stop => {}
        () = follow(watch.view.clone(), steering, writer, None) => {}
    }
    Ok(())
}

/// How often the library's file is looked at.
const LIBRARY_INTERVAL: Duration = Duration::from_secs(1);

/// How long after a share could not be written it is tried again with the same library and the same members.
const RETRY_AFTER: Duration = Duration::from_secs(30);

async fn share_for_ever(settings: &Settings, share: Share, once: bool) -> Result<()> {
    let stop = told_to_end()?;
    let settle = Duration::from_secs(settings.write.settle_seconds);
    let watch = registry::watch(&settings.registry)?;
    let mut view = watch.view.clone();
    let work = async {
        let mut written_for = None;
        let mut failed_for = None;
        loop {
            let now = heard(&mut view).await?;
            let holders = holders_of(&now.members);
            let is_moved = written_for.as_ref().is_some_and(|(it, _)| *it != holders);
            if is_moved && !is_settled(&mut view, &holders, settle).await {
                continue;
            }
            let looked = share.clone();
            let library = spawn_blocking(move || looked.manifest_state()).await?;
            let wanted = Some((holders, library));
            let has_just_failed = failed_for
                .as_ref()
                .is_some_and(|(it, since): &(_, Instant)| {
                    *it == wanted && since.elapsed() < RETRY_AFTER
                });
            if written_for != wanted && !has_just_failed {
                let (share, members) = (share.clone(), Arc::clone(&now.members));
                match spawn_blocking(move || share.write(&members)).await? {
                    Ok(it) => {
                        tracing::info!("{} of {} lines are this edge's", it.held, it.all);
                        written_for = wanted;
                    }
                    Err(error) if once => return Err(error),
                    Err(error) => {
                        tracing::error!("{error:#}");
                        failed_for = Some((wanted, Instant::now()));
                    }
                }
            }
            if once {
                return Ok(());
            }
            tokio::select! {
                changed = view.changed() => changed?,
                () = tokio::time::sleep(LIBRARY_INTERVAL) => {}
            }
        }
    };
    tokio::select! {
        () = stop => Ok(()),
        done = work => done,
    }
}

/// The next view that is not empty for want of an answer.
async fn heard(view: &mut Receiver<View>) -> Result<View> {
    let is_known = |view: &View| view.freshness == Freshness::Current || !view.members.is_empty();
    Ok(view.wait_for(is_known).await?.clone())
}

/// Whether the holders stay these for so long.
async fn is_settled(
    view: &mut Receiver<View>,
    holders: &[(String, String, u64)],
    settle: Duration,
) -> bool {
    let changed = view.wait_for(|view| holders_of(&view.members) != holders);
    tokio::time::timeout(settle, changed).await.is_err()
}

fn writer(settings: &Settings, directory: Option<PathBuf>) -> Result<Option<Arc<Writer>>> {
    let titles = settings.write.titles.as_deref();
    let writer = directory.map(|it| Writer::new(&it, titles));
    Ok(writer.transpose()?.map(Arc::new))
}

/// Takes each view of the registry, and says what changed of it.
async fn follow(
    mut view: Receiver<View>,
    steering: Arc<Steering>,
    writer: Option<Arc<Writer>>,
    service: Option<Arc<Service>>,
) {
    let mut was_lost = false;
    let mut told = None;
    while view.changed().await.is_ok() {
        let now = view.borrow_and_update().clone();
        steering.take(&now);
        let counters = service.as_ref().map(|service| &service.counters);
        if let Some(counters) = counters {
            count(&counters.changes);
        }
        match &now.freshness {
            Freshness::LastKnown { why, .. } if !was_lost => {
                tracing::warn!(
                    "the {} members known last are used: {why}",
                    now.members.len()
                );
                if let Some(counters) = counters {
                    count(&counters.lost);
                }
                was_lost = true;
            }
            Freshness::Current => {
                let serving = now.members.iter().filter(|it| it.takes_players()).count();
                let count = Some((now.members.len(), serving));
                // Not each time that a load changes.
                if was_lost || told != count {
                    tracing::info!("{} members, {serving} for players", now.members.len());
                }
                (was_lost, told) = (false, count);
            }
            _ => {}
        }
        for why in &*now.refused {
            tracing::warn!("no member: {why}");
        }
        // Before anybody is known there is nothing to say.
        let is_known = !now.members.is_empty() || now.freshness == Freshness::Current;
        if writer.is_some()
            && is_known
            && let Err(error) = write_now(writer.clone(), Arc::clone(&steering)).await
        {
            tracing::error!("{error:#}");
        }
    }
}

async fn write_now(writer: Option<Arc<Writer>>, steering: Arc<Steering>) -> Result<()> {
    let Some(writer) = writer else {
        return Ok(());
    };
    let written = spawn_blocking(move || writer.write(&steering)).await??;
    tracing::info!(
        "manifests: {} written, {} as they were",
        written.changed,
        written.kept
    );
    Ok(())
}
