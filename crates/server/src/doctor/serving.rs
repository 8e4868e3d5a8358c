//! What is to be served, if the command line names it: whether its settings are right, and whether the user that
//! would serve it can read it, without the page cache if that is asked for.
//!
//! It refuses to touch interfaces and addresses: `atlas serve --check` and the start do. Bounds: those of the start.

use std::path::PathBuf;

use memory::ArenaConfig;

use super::Finding;
use super::host::{SLOT_BYTES, SLOTS, Serving};
use crate::failure::Failure;
use crate::settings::cli::DoctorArgs;
use crate::settings::{CommonArgs, LinkChoice, Settings};
use crate::start::{self, Probed};

/// Bytes of cells of an AF_XDP socket, one for each worker: locked memory.
const XDP_BYTES: u64 = 16 << 20;

/// What is to be served, and with what settings.
#[derive(Debug)]
pub(super) struct Plan {
    /// Whether the command line says anything of it.
    pub(super) is_named: bool,
    settings: Result<Settings, Failure>,
}

impl Plan {
    pub(super) fn read(args: &DoctorArgs) -> Self {
        let common = CommonArgs {
            // Only its settings are looked at if there is none.
            path: args.path.clone().unwrap_or_else(|| PathBuf::from("/")),
            config: args.config.clone(),
            ..CommonArgs::default()
        };
        Self {
            is_named: args.path.is_some() || args.config.is_some(),
            settings: Settings::resolve(common),
        }
    }

    /// Bytes of a worker's slots, without the room around them.
    pub(super) fn slots_bytes(&self) -> u64 {
        let configured = self.settings.as_ref().map(|it| it.limits.slots.into());
        configured.unwrap_or(SLOTS) * u64::from(ArenaConfig::SLOT_BYTES)
    }

    /// What it takes of this machine; that of the defaults if the settings are wrong, or none are named.
    pub(super) fn needs(&self) -> Serving {
        let Ok(settings) = &self.settings else {
            return Serving::default();
        };
        let is_xdp = matches!(settings.link, LinkChoice::Xdp(_) | LinkChoice::XdpPacket(_));
        let slots = u64::from(settings.limits.slots) * SLOT_BYTES;
        let sockets = u64::from(settings.workers) * XDP_BYTES;
        Serving {
            locked_bytes: slots + if is_xdp { sockets } else { 0 },
            is_xdp,
        }
    }
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            locked_bytes: SLOTS * SLOT_BYTES,
            is_xdp: false,
        }
    }
}

/// Drops rights for good, as the server would.
pub(super) fn findings(args: &DoctorArgs, plan: &Plan) -> Vec<Finding> {
    let settings = match &plan.settings {
        Ok(settings) => settings,
        Err(failure) => return vec![Finding::refused("settings", failure)],
    };
    let mut found = Vec::new();
    if let Some(file) = &args.config {
        found.push(Finding::good("settings", file.display().to_string()));
    }
    if args.path.is_some() {
        let path = settings.path.display();
        found.push(match start::probe_path(settings) {
            Err(failure) => Finding::refused("PATH", &failure),
            Ok(Probed { how, remedy }) => {
                let how = format!("{path}: {how}");
                match remedy {
                    None => Finding::good("PATH", how),
                    Some(remedy) => Finding::less("PATH", how, remedy),
                }
            }
        });
    }
    found
}
