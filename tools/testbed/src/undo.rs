//! A record of what was set up, undone in reverse order when dropped.
//!
//! Undoing goes on past a step that fails and says which one it was: half a clean-up is worse
//! than a noisy one.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

type Step = Box<dyn FnOnce() -> Result<()>>;

/// What is to be undone, last first.
#[derive(Default)]
pub struct Undo {
    steps: Vec<(String, Step)>,
}

impl Undo {
    /// Records how to undo something that has just been done.
    pub fn add(&mut self, what: impl Into<String>, step: impl FnOnce() -> Result<()> + 'static) {
        self.steps.push((what.into(), Box::new(step)));
    }

    /// Writes a kernel setting and records its former value.
    pub fn set(&mut self, file: &Path, value: &str) -> Result<()> {
        let before = fs::read_to_string(file).with_context(|| format!("reading {file:?}"))?;
        if before.trim() == value {
            return Ok(());
        }
        // Recorded before writing: a write that half worked is undone too.
        let path: PathBuf = file.to_path_buf();
        self.add(format!("restore {}", file.display()), move || {
            fs::write(&path, before.trim()).with_context(|| format!("writing {path:?}"))
        });
        fs::write(file, value).with_context(|| format!("writing {value} to {file:?}"))
    }
}

impl fmt::Debug for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.steps.iter().map(|(what, _)| what);
        f.debug_list().entries(names).finish()
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        while let Some((what, step)) = self.steps.pop() {
            if let Err(error) = step() {
                eprintln!("could not undo ({what}): {error:#}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn undoes_in_reverse_and_goes_on_past_a_failure() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut undo = Undo::default();
        for index in 0..3 {
            let order = Rc::clone(&order);
            undo.add(format!("step {index}"), move || {
                order.borrow_mut().push(index);
                anyhow::ensure!(index != 1, "step 1 fails");
                Ok(())
            });
        }
        drop(undo);
        assert_eq!(*order.borrow(), [2, 1, 0]);
    }

    #[test]
    fn a_setting_comes_back() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("setting");
        fs::write(&file, "before\n").expect("write");
        let mut undo = Undo::default();
        undo.set(&file, "during").expect("set");
        assert_eq!(fs::read_to_string(&file).expect("read"), "during");
        drop(undo);
        assert_eq!(fs::read_to_string(&file).expect("read"), "before");
    }
}
