//! `cargo xtask fleet --serve`, `make demo FLEET=1`: the stage to look at. Viewers ask all the time, a page plays films, and
//! lines at the terminal kill, drain and add edges.
//!
//! The host gets an interface to the stage's bridge, which goes with it. Ends by Ctrl-C, or by the end of stdin.

use std::io::BufRead as _;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use testbed::interrupt;
use testbed::process::run as run_command;
use testbed::undo::Undo;

use crate::compare::EDGES;
use crate::edge::Fleet;
use crate::faults::plan_with_films;
use crate::library;
use crate::players::{self, Players};
use crate::stage::{EDGES_MAX, Stage};
use crate::viewer::Audience;

/// The host's interface.
const INTERFACE: &str = "atlas-fleet";

/// Requests a second of the viewers, and of how many their trace is.
const RATE: u32 = 50;
const TRACE: usize = 1_000_000;

/// How often it is told who answers whom.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Shows the stage until it is told to end.
pub(crate) fn run(stage: &Stage) -> Result<()> {
    let _undo = join_host(stage)?;
    let mut fleet = Fleet::start(stage, plan_with_films(stage), EDGES)?;
    println!("\nA fleet of {EDGES} edges serves; Ctrl-C ends it.");
    match players::find() {
        Players::Browser(modules) => {
            players::write_page(stage, &modules, library::FILM_SECONDS)?;
            println!("  http://10.78.0.2/page/index.html plays two films by hls.js and dash.js");
        }
        Players::Ffmpeg(reason) => println!("  no page with players: {reason}"),
    }
    println!("  curl -L http://10.78.0.1:8090/redirect/o/000000.bin --output o.bin");
    println!("  curl http://10.78.0.1:8090/resolve?path=/films/hls/master.m3u8");
    println!("Write a line: kill N, drain N or add N, with N from 1 to {EDGES_MAX}.\n");
    let trace = library::trace(stage.objects.len(), TRACE);
    let audience = Audience::default();
    std::thread::scope(|scope| {
        let viewers = scope.spawn(|| {
            let play = || audience.play(&stage.objects, &trace, RATE);
            stage.core.enter(play)
        });
        let directed = direct(stage, &mut fleet, &audience);
        audience.is_over.store(true, Ordering::Relaxed);
        let viewed = viewers.join();
        let viewed = viewed.map_err(|_| anyhow::anyhow!("the viewers panicked"))?;
        if interrupt::is_set() {
            return Ok(());
        }
        directed.and(viewed)
    })?;
    audience.taken().check()
}

/// Gives the host an interface to the bridge. It is taken away by name: a namespace is there until its last socket is.
fn join_host(stage: &Stage) -> Result<Undo> {
    let ip = |arguments: &str| {
        let mut command = Command::new("ip");
        command.args(arguments.split(' '));
        command
    };
    let core = stage.core.name();
    let peer = format!("type veth peer name host0 netns {core}");
    run_command(&mut ip(&format!("link add {INTERFACE} {peer}")))?;
    let mut undo = Undo::default();
    let mut remove = ip(&format!("link del {INTERFACE}"));
    undo.add(format!("remove {INTERFACE}"), move || {
        run_command(&mut remove).map(drop)
    });
    stage.core.ip("link set host0 master net0 up")?;
    run_command(&mut ip(&format!("addr add 10.78.0.3/16 dev {INTERFACE}")))?;
    run_command(&mut ip(&format!("link set {INTERFACE} up")))?;
    Ok(undo)
}

fn direct(stage: &Stage, fleet: &mut Fleet, audience: &Audience) -> Result<()> {
    let lines = lines();
    let mut before = audience.taken();
    loop {
        match lines.recv_timeout(TELL_EVERY) {
            Ok(line) => match command(stage, fleet, &line) {
                Ok(()) => continue,
                Err(error) => println!("{error:#}"),
            },
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        interrupt::check()?;
        let now = audience.taken();
        let mut places: Vec<_> = now.places.iter().collect();
        places.sort();
        let places = places.into_iter().map(|(place, count)| {
            let count = count - before.places.get(place).unwrap_or(&0);
            format!("{place} {count}")
        });
        println!(
            "answered by {}; moved {}, wrong {}, failed {} in all",
            places.collect::<Vec<_>>().join(", "),
            now.moves(),
            now.wrong.len(),
            now.failed.len()
        );
        before = now;
    }
}

/// Does what a line says.
fn command(stage: &Stage, fleet: &mut Fleet, line: &str) -> Result<()> {
    let (verb, number) = line
        .trim()
        .split_once(' ')
        .context("kill N, drain N, add N")?;
    let number: usize = number.trim().parse().context("the number of an edge")?;
    if !(1..=EDGES_MAX).contains(&number) {
        bail!("there are edges 1 to {EDGES_MAX}");
    }
    match verb {
        "kill" => {
            fleet.kill(number)?.wait()?;
        }
        "drain" => {
            let edge = fleet.edges.remove(&number).context("no such edge")?;
            edge.atlas.signal(Signal::TERM)?;
            edge.wait()?;
        }
        "add" if !fleet.edges.contains_key(&number) => fleet.add(stage, number)?,
        _ => bail!("kill N, drain N, or add N of an edge that is not there"),
    }
    println!("done: {line}");
    Ok(())
}

/// Lines of stdin. The thread ends with the process, or with its stdin.
fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
