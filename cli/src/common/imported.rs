//! The folder of an imported model: a program in text form, the values of its states, and what it takes and gives.

use crate::common::error::CliError;
use kernfusion::trace::Program;
use kernfusion::{HostTensor, tensor_file};
use kernfusion_import::Imported;
use kernfusion_ir::{InputRole, TensorType};
use kernfusion_lm::NewFolder;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

const PROGRAM: &str = "program.kir";
const WEIGHTS: &str = "weights.safetensors";
const SIGNATURE: &str = "signature.json";

/// The file of a program: that in the folder of an imported model, or the file itself.
pub(crate) fn program_file(path: &Path) -> Cow<'_, Path> {
    if path.is_dir() { path.join(PROGRAM).into() } else { path.into() }
}

/// The file with the values of a program's states, if it is that of an imported model.
pub(crate) fn weights_file(path: &Path) -> Option<PathBuf> {
    path.is_dir().then(|| path.join(WEIGHTS))
}

/// Extents that an archive leaves open.
#[derive(clap::Args)]
pub(crate) struct ExtentArgs {
    /// Of an archive with open extents (dynamic_shapes): an axis of an input, and its extent; may be given several times
    #[arg(long, value_name = "INPUT.AXIS=N", value_parser = extent)]
    dim: Vec<(String, usize)>,
}

impl ExtentArgs {
    /// Opens an archive with these extents.
    pub(crate) fn open(&self, archive: &Path) -> Result<Imported, CliError> {
        let extents: Vec<_> = self.dim.iter().map(|(name, extent)| (name.as_str(), *extent)).collect();
        Ok(Imported::open_sized(archive, &extents)?)
    }

    /// Refuses extents where there is no archive.
    pub(crate) fn only_if(&self, is_archive: bool) -> Result<(), CliError> {
        match is_archive || self.dim.is_empty() {
            true => Ok(()),
            false => Err(CliError::Usage("--dim is of an archive of torch.export.save".into())),
        }
    }
}

/// A name and an extent.
fn extent(text: &str) -> Result<(String, usize), &'static str> {
    let pair =
        text.rsplit_once('=').and_then(|(name, extent)| Some((name.to_string(), extent.parse().ok()?)));
    pair.filter(|(name, _)| !name.is_empty()).ok_or("it is INPUT.AXIS=N, such as input_ids.0=8")
}

/// The folder of a model that is about to be written, unless there is one that may not be replaced.
pub(crate) fn claim(path: &Path, replaces: bool) -> Result<NewFolder, CliError> {
    let is_ours = |name: &str| [PROGRAM, WEIGHTS, SIGNATURE].contains(&name);
    let folder = NewFolder::create(path, if replaces { Some(&is_ours) } else { None });
    Ok(folder.map_err(kernfusion_lm::Error::from)?)
}

/// Writes the folder of a model; it is there whole or not at all.
pub(crate) fn write<'t>(
    folder: NewFolder,
    states: impl IntoIterator<Item = (&'t str, &'t HostTensor)>,
    program: &Program,
) -> Result<(), CliError> {
    let put = || {
        folder.write(PROGRAM, program.graph.to_string().as_bytes())?;
        folder.write(WEIGHTS, &tensor_file::content(states))?;
        folder.write(SIGNATURE, format!("{:#}\n", signature(program)).as_bytes())?;
        folder.commit()
    };
    put().map_err(kernfusion_lm::Error::from)?;
    Ok(())
}

/// Inputs and outputs in their order: names, dtypes, shapes.
fn signature(program: &Program) -> Value {
    let graph = &program.graph;
    let described =
        |name: &str, ty: &TensorType| json!({"name": name, "dtype": ty.dtype.name(), "shape": ty.shape});
    let data = graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
    let inputs: Vec<_> = data.map(|(id, name, _)| described(name, &graph[id].ty)).collect();
    let given = graph.outputs().iter().filter(|output| !output.updates_state);
    let outputs: Vec<_> = given.map(|output| described(&output.name, &graph[output.value].ty)).collect();
    json!({"inputs": inputs, "outputs": outputs})
}
