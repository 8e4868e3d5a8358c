//! Films made to be played: ffmpeg's test picture and a tone, and what each frame of them holds.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process::output;

/// Pictures a second.
pub const FRAME_RATE: u32 = 25;

/// Making or playing a film takes seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes a film of `seconds` at `file`, pictures of `size` (`320x180`); `options` come before the
/// name, and say how it is wrapped.
pub fn make(file: &Path, seconds: u32, size: &str, options: &[&str]) -> Result<()> {
    let picture = format!("testsrc2=size={size}:rate={FRAME_RATE}:duration={seconds}");
    let sound = format!("sine=frequency=440:sample_rate=48000:duration={seconds}");
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-f", "lavfi", "-i", &picture]);
    command.args(["-f", "lavfi", "-i", &sound]);
    command.args(["-c:v", "libx264", "-preset", "ultrafast"]);
    command.args(["-pix_fmt", "yuv420p", "-c:a", "aac", "-b:a", "128k"]);
    command.args(options).arg(file);
    let output = output(&mut command, LIMIT)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ffmpeg made no film: {}",
        complaint.trim()
    );
    Ok(())
}

/// Wraps the pictures and sound of `source` as they are into another kind of file; `options` come
/// before its name.
pub fn wrap(source: &Path, file: &Path, options: &[&str]) -> Result<()> {
    let mut command = Command::new("ffmpeg");
    command.args(["-v", "error", "-i"]).arg(source);
    command.args(["-c", "copy"]).args(options).arg(file);
    let output = output(&mut command, LIMIT)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ffmpeg wrapped no film: {}",
        complaint.trim()
    );
    Ok(())
}

/// Decodes a film and returns the MD5 of each of its frames, one line each. `player` is ffmpeg,
/// wherever it is to run; `options` come before the source.
pub fn play(mut player: Command, options: &[&str], source: &str) -> Result<String> {
    player.args(["-v", "error"]).args(options);
    player.args(["-i", source, "-map", "0", "-f", "framemd5", "-"]);
    let output = output(&mut player, LIMIT)?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ffmpeg cannot play {source}: {}",
        complaint.trim()
    );
    let listing = String::from_utf8(output.stdout).context("framemd5 is text")?;
    ensure!(frames(&listing) > 0, "{source} has no frames");
    Ok(listing)
}

/// Frames in a framemd5 listing; its comments begin with `#`.
pub fn frames(listing: &str) -> usize {
    listing
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count()
}

#[cfg(test)]
mod tests {
    use super::frames;

    #[test]
    fn comments_are_not_frames() {
        assert_eq!(
            frames("#format: frame checksums\n#hash: MD5\n0, 0, 0, 1, 9, abc\n"),
            1
        );
    }
}
