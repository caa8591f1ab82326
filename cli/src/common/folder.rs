//! What a folder is, for those who name one of another kind than a command takes.

use crate::common::error::CliError;
use crate::common::imported::PROGRAM;
use kernfusion_lm::checkpoint::CHECKPOINT_FILE;
use std::path::Path;

/// Folders of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of a run of `train` or `tune`.
    Checkpoint,
    /// Of an archive of PyTorch or an ONNX file that was imported.
    Imported,
    /// In the layout of Hugging Face.
    Published,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Checkpoint, Kind::Imported, Kind::Published];

    /// A file that folders of this kind have.
    fn file(self) -> &'static str {
        match self {
            Kind::Checkpoint => CHECKPOINT_FILE,
            Kind::Imported => PROGRAM,
            Kind::Published => "config.json",
        }
    }

    fn is_of(self, folder: &Path) -> bool {
        folder.join(self.file()).is_file()
    }

    fn hint(self) -> &'static str {
        match self {
            Kind::Checkpoint => {
                "this is a checkpoint: generate, score, compile and tune take it by --checkpoint, and export makes a model in the layout of \
                 Hugging Face of it"
            }
            Kind::Imported => {
                "this is the folder of an imported model: run, dump, opt and bisect take it by its name, bench, explain, profile, compile and \
                 train by --program, and export with --format onnx"
            }
            Kind::Published => {
                "this is a model in the layout of Hugging Face: generate, chat, score and compile take it by --model, and import makes a \
                 checkpoint of it"
            }
        }
    }
}

/// Refuses a folder that is of another kind than is asked for. Those of no kind are left to the reader, which says what it misses.
pub(crate) fn expect(folder: &Path, expected: Kind) -> Result<(), CliError> {
    match Kind::ALL.into_iter().find(|kind| kind.is_of(folder)) {
        Some(other) if !expected.is_of(folder) => {
            Err(CliError::Content { path: folder.into(), reason: other.hint().into() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_known_by_its_files() {
        let work = tempfile::tempdir().unwrap();
        let folder = work.path();
        assert!(expect(folder, Kind::Checkpoint).is_ok());
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        assert!(expect(folder, Kind::Published).is_ok());
        let message = expect(folder, Kind::Imported).unwrap_err().to_string();
        assert!(message.ends_with(Kind::Published.hint()), "{message}");
        std::fs::write(folder.join(PROGRAM), "").unwrap();
        assert!(expect(folder, Kind::Published).is_ok() && expect(folder, Kind::Imported).is_ok());
    }
}
