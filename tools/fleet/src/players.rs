//! Players in a browser: hls.js and dash.js, which the steering moves; else ffmpeg, which it does not.
//!
//! The players are installed beneath the target directory by npm. The page is the origin's, and so are the playlists;
//! what they name the players take from the edges. Bounded by: the film's length and a while.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use testbed::process::output;
use testbed::{film, find_program, scratch_directory, target_directory};

use crate::library::{DASH, FILM_SECONDS, HLS};
use crate::stage::Stage;

/// The players, their releases, and their files.
const PLAYERS: [(&str, &str, &str); 2] = [
    ("hls.js@1.7.4", "hls.js/dist/hls.min.js", "hls.js"),
    (
        "dashjs@5.2.1",
        "dashjs/dist/modern/umd/dash.all.min.js",
        "dash.js",
    ),
];

/// How long after the film's length a player may end.
const LATE_SECONDS: u32 = 30;

/// The browser starts, and installing takes a minute.
const SPARE: Duration = Duration::from_secs(60);
const INSTALL_LIMIT: Duration = Duration::from_secs(180);

/// How a film is played.
#[derive(Clone, Debug)]
pub(crate) enum Players {
    /// In a browser, by these files.
    Browser(PathBuf),
    /// By ffmpeg, for this reason.
    Ffmpeg(String),
}

/// Finds a browser and its players, or says why not.
pub(crate) fn find() -> Players {
    if find_program("chromium").is_none() {
        return Players::Ffmpeg("chromium is not installed".to_owned());
    }
    let folder = target_directory().join("fleet-players");
    let modules = folder.join("node_modules");
    let is_there = || {
        PLAYERS
            .iter()
            .all(|(_, file, _)| modules.join(file).exists())
    };
    if !is_there() {
        if find_program("npm").is_none() {
            return Players::Ffmpeg("no npm to install hls.js and dash.js with".to_owned());
        }
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund"]);
        npm.args(["--ignore-scripts", "--prefix"]).arg(&folder);
        npm.args(PLAYERS.map(|(release, ..)| release));
        let _ = fs::create_dir_all(&folder);
        let _ = output(&mut npm, INSTALL_LIMIT);
    }
    match is_there() {
        true => Players::Browser(modules),
        false => Players::Ffmpeg("hls.js and dash.js cannot be installed".to_owned()),
    }
}

/// What a player told.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    name: String,
    told: Value,
}

impl Played {
    /// Fails unless the film was played to its end without an error that stopped it.
    pub(crate) fn check(&self) -> Result<()> {
        let (name, told) = (&self.name, &self.told);
        let is_whole = told["ended"] == true
            && told["seconds"]
                .as_u64()
                .is_some_and(|it| it + 1 >= FILM_SECONDS.into());
        let has_no_error = told["fatal"].as_array().is_some_and(Vec::is_empty);
        ensure!(is_whole && has_no_error, "{name}: {told}");
        Ok(())
    }

    /// For people.
    pub(crate) fn line(&self) -> String {
        format!(
            "{}: played to {} s, {} stalls, segments from {}, gone on after {}",
            self.name,
            self.told["seconds"],
            self.told["stalls"],
            self.told["hosts"],
            self.told["troubles"]
        )
    }

    /// How many edges it took segments from.
    pub(crate) fn edges(&self) -> usize {
        let hosts = self.told["hosts"].as_object();
        hosts.map_or(0, |it| {
            it.keys()
                .filter(|host| host.starts_with("10.78.2."))
                .count()
        })
    }
}

/// Puts the page where the origin has it; it tells what it saw when the films are over, or after so many seconds.
pub(crate) fn write_page(stage: &Stage, modules: &Path, limit_seconds: u32) -> Result<()> {
    let page = stage.origin.page_folder();
    fs::create_dir_all(&page)?;
    for (_, file, name) in PLAYERS {
        fs::copy(modules.join(file), page.join(name))?;
    }
    let text = include_str!("page.html").replace("@LIMIT_SECONDS@", &limit_seconds.to_string());
    fs::write(page.join("index.html"), text)?;
    Ok(())
}

/// Plays both films at once in a browser.
pub(crate) fn play_in_browser(stage: &Stage, modules: &Path) -> Result<Vec<Played>> {
    let limit = FILM_SECONDS + LATE_SECONDS;
    write_page(stage, modules, limit)?;
    let home = scratch_directory("browser")?;
    let mut command = stage.core.command("env");
    command.arg(format!("HOME={}", home.path().display()));
    command.args(["chromium", "--headless", "--no-sandbox", "--disable-gpu"]);
    command.args([
        "--disable-dev-shm-usage",
        "--autoplay-policy=no-user-gesture-required",
    ]);
    command.arg(format!("--user-data-dir={}", home.path().display()));
    command.args(["--dump-dom", "http://10.78.0.2/page/index.html"]);
    let wait = Duration::from_secs(limit.into()) + SPARE;
    let output = output(&mut command, wait)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text
        .split_once("<pre id=\"out\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(said, _)| {
            said.replace("&amp;", "&")
                .replace("&gt;", ">")
                .replace("&lt;", "<")
        })
        .with_context(|| format!("not our page: {text}"))?;
    let told: BTreeMap<String, Value> =
        serde_json::from_str(&said).with_context(|| format!("the page says {said:?}"))?;
    let played = told.into_iter().map(|(name, told)| Played {
        name: format!("{name}.js"),
        told,
    });
    Ok(played.collect())
}

/// Plays both films by ffmpeg, from what an edge has.
pub(crate) fn play_by_ffmpeg(stage: &Stage) -> Result<usize> {
    let mut frames = 0;
    for name in [HLS, DASH] {
        let url = format!("http://10.78.0.1:8090/redirect/{name}");
        let listing = film::play(stage.core.command("ffmpeg"), &[], &url)?;
        frames += film::frames(&listing);
    }
    Ok(frames)
}
