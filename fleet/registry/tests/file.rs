//! A registry that is a file.

#![allow(clippy::unwrap_used, reason = "what fails in a test shall fail loudly")]

use std::fs;
use std::time::Duration;

use registry::{FileSettings, Freshness, RegistrySettings, View, Watch, watch};
use tokio::time::timeout;

const ONE: &str = r#"{"version":1,"members":[{"name":"a","url":"http://a","capacity_bytes":1}]}"#;
const TWO: &str = r#"{"version":1,"members":[{"name":"a","url":"http://a","capacity_bytes":1},
    {"name":"b","url":"http://b","capacity_bytes":1}]}"#;

async fn until(watch: &mut Watch, is_wanted: impl FnMut(&View) -> bool) -> View {
    let seen = timeout(Duration::from_secs(20), watch.view.wait_for(is_wanted)).await;
    seen.expect("in time").expect("the watch goes on").clone()
}

#[tokio::test]
async fn a_file_is_followed_and_the_last_that_was_right_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("members.json");
    let settings = RegistrySettings::File(FileSettings { path: path.clone() });
    let mut watch = watch(&settings).unwrap();
    let is_lost = |text: &'static str| move |view: &View| matches!(&view.freshness, Freshness::LastKnown { why, .. } if why.contains(text));
    until(&mut watch, is_lost("No such file")).await;
    fs::write(&path, ONE).unwrap();
    let view = until(&mut watch, |view| view.freshness == Freshness::Current).await;
    assert_eq!(view.members.len(), 1);
    fs::write(&path, "{").unwrap();
    assert_eq!(until(&mut watch, is_lost("EOF")).await.members.len(), 1);
    fs::write(folder.path().join("new"), TWO).unwrap();
    fs::rename(folder.path().join("new"), &path).unwrap();
    until(&mut watch, |view| view.members.len() == 2).await;
    fs::remove_file(&path).unwrap();
    assert_eq!(
        until(&mut watch, is_lost("No such file"))
            .await
            .members
            .len(),
        2
    );
}
