//! The log of a run, and what becomes of it when the run is resumed.

use super::{Row, Watcher};
use crate::Result;
use crate::jsonl::{JsonLines, JsonLinesError};
use kernfusion::atomic_file::AtomicFile;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

impl Watcher for JsonLines {
    fn row(&mut self, row: &Row) -> Result<()> {
        Ok(self.write(row)?)
    }
}

/// Opens a log to go on after `step`. Rows of later steps, which a run has written that was killed after its last
/// checkpoint, are dropped: these steps are done again.
pub(super) fn open_after(path: &Path, step: u64) -> std::result::Result<JsonLines, JsonLinesError> {
    let failed = |cause| JsonLinesError::Io { path: path.into(), cause };
    // Opening for appending first repairs what a crash has left of the last line.
    let log = JsonLines::append(path)?;
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let kept: Vec<&str> = text.lines().filter(|row| !is_later(row, step)).collect();
    if kept.len() == text.lines().count() {
        return Ok(log);
    }
    let rewrite = || {
        let mut file = AtomicFile::create(path)?;
        kept.iter().try_for_each(|row| writeln!(file, "{row}"))?;
        file.commit()
    };
    rewrite().map_err(failed)?;
    // The file that was open before is no more the one of this name.
    drop(log);
    JsonLines::append(path)
}

fn is_later(row: &str, step: u64) -> bool {
    let row: Option<Value> = serde_json::from_str(row).ok();
    row.and_then(|row| row.get("step")?.as_u64()).is_some_and(|other| other > step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_after_the_checkpoint_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
        let rows = "{\"step\":1,\"loss\":4.5}\n{\"step\":2,\"loss\":4.25}\n{\"step\":2,\"val_loss\":4.0}\n";
        std::fs::write(&path, format!("{rows}{{\"step\":3,\"loss\":4.0}}\n{{\"step\":4,\"lo")).unwrap();
        open_after(&path, 2).unwrap().write(&json!({"step": 3})).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{rows}{{\"step\":3}}\n"));
        open_after(&path, 9).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{rows}{{\"step\":3}}\n"));
        open_after(&path, 0).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
