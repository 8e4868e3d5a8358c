//! Makes the client of an origin from the settings, the environment and a file of credentials.

use std::path::Path as FilePath;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::ClientOptions;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, RetryConfig};
use reqwest::header::{HeaderMap, HeaderValue};

use super::OriginSettings;
use super::observe::{Connector, Signing};
use crate::checks::OriginKind;

/// Longest file of credentials, bytes.
const CREDENTIALS_BYTES_MAX: u64 = 64 << 10;
/// In a file of credentials, the field that HTTP origins are sent.
const AUTHORIZATION: &str = "AUTHORIZATION";

/// A client that is ready.
#[derive(Clone, Debug)]
pub(super) struct Built {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) prefix: Path,
    pub(super) kind: OriginKind,
    pub(super) can_list: bool,
}

/// The scheme of an origin's URL, and what is behind it.
///
/// # Errors
/// It is none that is known.
pub fn check_url(url: &str) -> Result<(&str, &str), String> {
    let known = url.split_once("://").filter(|(scheme, rest)| {
        let is_path = rest.starts_with('/');
        match *scheme {
            "s3" | "gs" | "az" | "http" | "https" => !rest.is_empty() && !is_path,
            "file" => is_path,
            _ => false,
        }
    });
    known.ok_or_else(|| {
        format!(
            "origin {url:?}: no origin; write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, \
             https://HOST/PATH, http://HOST/PATH or file:///PATH"
        )
    })
}

/// Builds it.
///
/// # Errors
/// What is wrong with the settings or the file of credentials.
pub(super) fn build(settings: &OriginSettings) -> Result<Built, String> {
    let (scheme, rest) = check_url(&settings.url)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = Path::parse(prefix.trim_matches('/'))
        .map_err(|error| format!("origin {:?}: {error}", settings.url))?;
    let secrets = match &settings.credentials {
        Some(path) => read_credentials(path)?,
        None => Vec::new(),
    };
    let failed = |error: object_store::Error| {
        // Without what it was made of, which may be a secret.
        format!("origin {:?}: {}", settings.url, innermost(&error))
    };
    let connector = || Connector::new(settings.stall, None);
    let (store, kind, can_list): (Arc<dyn ObjectStore>, _, _) = match scheme {
        "s3" => (
            build_s3(settings, bucket, &secrets).map_err(failed)?,
            OriginKind::S3,
            true,
        ),
        "gs" => {
            let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            for (key, value) in known::<GoogleConfigKey>(&secrets) {
                builder = builder.with_config(key, value);
            }
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            let builder = builder.with_client_options(options(settings));
            let builder = builder.with_retry(no_retries());
            let store = builder.with_http_connector(connector()).build();
            (Arc::new(store.map_err(failed)?), OriginKind::Other, true)
        }
        "az" => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            for (key, value) in known::<AzureConfigKey>(&secrets) {
                builder = builder.with_config(key, value);
            }
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            let builder = builder.with_client_options(options(settings));
            let builder = builder.with_retry(no_retries());
            let store = builder.with_http_connector(connector()).build();
            (Arc::new(store.map_err(failed)?), OriginKind::Other, true)
        }
        "file" => {
            let store = LocalFileSystem::new_with_prefix(rest).map_err(failed)?;
            return Ok(Built {
                store: Arc::new(store),
                prefix: Path::default(),
                kind: OriginKind::Other,
                can_list: true,
            });
        }
        _ => {
            let connector = connector().with_fields(authorization(&secrets)?);
            let builder = HttpBuilder::new()
                .with_url(format!("{scheme}://{bucket}"))
                .with_client_options(options(settings))
                .with_retry(no_retries());
            let store = builder.with_http_connector(connector).build();
            (Arc::new(store.map_err(failed)?), OriginKind::Other, false)
        }
    };
    Ok(Built {
        store,
        prefix,
        kind,
        can_list,
    })
}

fn build_s3(
    settings: &OriginSettings,
    bucket: &str,
    secrets: &[(String, String)],
) -> object_store::Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    for (key, value) in known::<AmazonS3ConfigKey>(secrets) {
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = &settings.region {
        builder = builder.with_region(region);
    }
    let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
    // Sessions of S3 Express are signed in another way.
    let is_express = bucket.ends_with("--x-s3");
    let signing = (!is_express).then(|| Signing {
        region: region.unwrap_or_else(|| "us-east-1".to_owned()),
        credentials: Arc::new(OnceLock::new()),
    });
    let credentials = signing.as_ref().map(|it| Arc::clone(&it.credentials));
    let store = builder
        .with_client_options(options(settings))
        .with_retry(no_retries())
        .with_http_connector(Connector::new(settings.stall, signing))
        .build()?;
    if let Some(cell) = credentials {
        let _ = cell.set(Arc::clone(store.credentials()));
    }
    Ok(Arc::new(store))
}

/// The credentials whose keys a provider knows.
fn known<K: FromStr>(secrets: &[(String, String)]) -> impl Iterator<Item = (K, &String)> {
    let key = |key: &str| key.to_ascii_lowercase().parse().ok();
    secrets
        .iter()
        .filter_map(move |(name, value)| Some((key(name)?, value)))
}

/// The caller decides what is tried again, and when.
fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// What our client of HTTP is told.
fn options(settings: &OriginSettings) -> ClientOptions {
    let urls = [Some(&settings.url), settings.endpoint.as_ref()];
    let is_http = urls
        .into_iter()
        .flatten()
        .any(|it| it.starts_with("http://"));
    ClientOptions::new()
        .with_allow_http(is_http)
        .with_connect_timeout_disabled()
}

/// The field that an HTTP origin is sent, if the credentials have one.
fn authorization(secrets: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut fields = HeaderMap::new();
    if let Some((_, value)) = secrets.iter().find(|(key, _)| key == AUTHORIZATION) {
        let mut value = HeaderValue::from_str(value).map_err(|_| {
            format!("credentials: {AUTHORIZATION} has characters that no field may have")
        })?;
        value.set_sensitive(true);
        fields.insert(reqwest::header::AUTHORIZATION, value);
    }
    Ok(fields)
}

/// Lines of `KEY=VALUE`; values may be in quotes, and lines that begin with `#` are comments.
fn read_credentials(path: &FilePath) -> Result<Vec<(String, String)>, String> {
    let shown = path.display();
    let metadata =
        std::fs::metadata(path).map_err(|error| format!("credentials {shown}: {error}"))?;
    if metadata.len() > CREDENTIALS_BYTES_MAX {
        return Err(format!(
            "credentials {shown}: more than {CREDENTIALS_BYTES_MAX} bytes"
        ));
    }
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("credentials {shown}: {error}"))?;
    parse_credentials(&text).map_err(|line| {
        format!("credentials {shown}:{line}: no line KEY=VALUE, such as AWS_SECRET_ACCESS_KEY=...")
    })
}

/// # Errors
/// The number of a line that is none.
fn parse_credentials(text: &str) -> Result<Vec<(String, String)>, usize> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let pair = |(index, line): (usize, &str)| {
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (key, value) = line.split_once('=').ok_or(index + 1)?;
        let value = value.trim();
        let bare = ['"', '\'']
            .into_iter()
            .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
        Ok((key.trim().to_owned(), bare.unwrap_or(value).to_owned()))
    };
    lines.map(pair).collect()
}

/// The reason at the end of a chain of errors.
pub(super) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_known_scheme_and_a_place() {
        for url in [
            "s3://b",
            "s3://b/p/q",
            "gs://b",
            "az://c/p",
            "https://h/p",
            "http://h:1",
            "file:///srv",
        ] {
            assert!(check_url(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "b/p",
            "s3:b",
            "s3:///p",
            "ftp://h",
            "file://srv",
            "memory:///",
            "https:///p",
        ] {
            let error = check_url(url).unwrap_err();
            assert!(error.contains("write s3://"), "{url}: {error}");
        }
    }

    #[test]
    fn credentials_are_lines_as_systemd_and_shells_have_them() {
        let text = "# mine\n\nAWS_ACCESS_KEY_ID=a\nexport B = \"c=d\"\nE='f'\n";
        let pairs = parse_credentials(text).unwrap();
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [("AWS_ACCESS_KEY_ID", "a"), ("B", "c=d"), ("E", "f")]
        );
        assert_eq!(parse_credentials("A=b\nsecret\n"), Err(2));
    }

    #[test]
    fn an_error_in_credentials_does_not_show_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hunter2\n").unwrap();
        let error = read_credentials(file.path()).unwrap_err();
        assert!(
            error.contains(":1:") && !error.contains("hunter2"),
            "{error}"
        );
        let error = read_credentials(FilePath::new("/nonexistent/file")).unwrap_err();
        assert!(error.contains("No such file"), "{error}");
    }
}
