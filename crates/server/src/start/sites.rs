//! The sites that are served, with the keys of their signed links, which are read before privileges are dropped.
//!
//! It refuses files that are longer than one with certificates may be. Bound: a file for each rule with links.

use std::sync::Arc;

use sites::Sites;

use crate::failure::Failure;
use crate::settings::Settings;
use crate::settings::sites::compile;
use crate::tls::PemFiles;

/// Reads the keys of links, and compiles the sites.
///
/// # Errors
/// The first file that is not what it must be.
pub(crate) fn load(settings: &Settings) -> Result<Arc<Sites>, Failure> {
    let files = PemFiles::direct();
    let sites = compile(settings, |link| {
        let text = files.read_file(link.file());
        link.parse_keys(&text.map_err(|error| link.refuse_file(&error))?)
    })?;
    Ok(Arc::new(sites))
}
