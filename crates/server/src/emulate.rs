//! Emulated sealing, for benches only: plain HTTP at the cost of TLS, with files nobody can read.
//!
//! The feature `emulate` compiles it, and only the binary `atlas-emulate` uses it: the command line
//! of `atlas` has no such command in any build. It refuses HTTPS. Bounded by: what serving is
//! bounded by.

use clap::Parser;

use crate::cli::{CommonArgs, TlsArgs};
use crate::config::FileConfig;
use crate::failure::Failure;
use crate::settings::{Settings, read_file};

/// What follows `atlas-emulate --help`.
const NOTES: &str = "\
What is sent:
  Heads of replies are plain HTTP. The bytes of files are sealed in place, in records of the size
  TLS has here, with AES-128-GCM under a key that is in the source code; no record headers or tags
  are added, so lengths are those of plain HTTP, and the client gets bytes that are not the file's.
  A client that only counts them, like a load generator, measures TLS without its handshake, its
  framing and the client's own decryption.

Example:
  sudo atlas-emulate /srv/video";

/// For benches only: serves plain HTTP, files sealed under a key that everybody knows.
///
/// It costs what TLS costs and protects nothing. Everything else is as with `atlas serve`.
#[derive(Parser, Clone, Debug)]
#[command(name = "atlas-emulate", version, after_help = NOTES, max_term_width = 100)]
pub struct EmulateArgs {
    /// What `atlas serve` takes without TLS.
    #[command(flatten)]
    pub common: CommonArgs,
}

impl Settings {
    /// Resolves the command line of `atlas-emulate`, reading the configuration file if it names one.
    ///
    /// # Errors
    /// The first setting that is not what it must be.
    pub fn resolve_emulated(args: EmulateArgs) -> Result<Self, Failure> {
        let file = read_file(&args.common)?;
        Self::merge_emulated(args, file)
    }

    /// Lays the flags of `atlas-emulate` over file over defaults.
    fn merge_emulated(args: EmulateArgs, file: FileConfig) -> Result<Self, Failure> {
        let settings = Self::lay(args.common, TlsArgs::default(), file)?;
        if settings.https.is_some() {
            return Err(Failure::refused(
                "https is for atlas serve",
                "leave https and certificate out of the configuration file",
            ));
        }
        Ok(Self {
            is_sealing_emulated: true,
            ..settings
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::EmulateArgs;
    use crate::cli::ServeArgs;
    use crate::config::FileConfig;
    use crate::settings::Settings;

    #[test]
    fn the_command_line_is_consistent() {
        EmulateArgs::command().debug_assert();
    }

    #[test]
    fn only_emulate_emulates_and_it_speaks_no_tls() {
        let emulated = |text: &str| {
            let args = EmulateArgs::parse_from(["atlas-emulate", "/srv", "--config", "atlas.toml"]);
            let file = FileConfig::parse(text).unwrap();
            Settings::merge_emulated(args, file).map_err(|failure| failure.to_string())
        };
        let settings = emulated("").unwrap();
        assert!(settings.is_sealing_emulated());
        assert_eq!(settings.urls(), "http://10.77.0.2/");
        let tls = "https = 443\n[[certificate]]\ncert = \"c\"\nkey = \"k\"\n";
        assert_eq!(
            emulated(tls).unwrap_err(),
            "https is for atlas serve; leave https and certificate out of the configuration file"
        );
        for flag in [
            &["--https", "443"][..],
            &["--cert", "a"],
            &["--key", "a"],
            &["--log-tls-secrets"],
        ] {
            let words = [&["atlas-emulate", "/srv"], flag].concat();
            assert!(EmulateArgs::try_parse_from(words).is_err(), "{flag:?}");
        }
        // `atlas serve` emulates with the feature as little as without.
        let served = Settings::merge(ServeArgs::default(), FileConfig::default()).unwrap();
        assert!(!served.is_sealing_emulated());
    }
}
