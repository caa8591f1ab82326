//! The folder of an imported model: a program in text form, the values of its states, and what it takes and gives.

use crate::common::error::CliError;
use kernfusion::tensor_file;
use kernfusion::trace::Program;
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

/// Writes the folder of a model; it is there whole or not at all.
pub(crate) fn write(
    path: &Path,
    imported: &Imported,
    program: &Program,
    replaces: bool,
) -> Result<(), CliError> {
    let is_ours = |name: &str| [PROGRAM, WEIGHTS, SIGNATURE].contains(&name);
    let put = || {
        let folder = NewFolder::create(path, if replaces { Some(&is_ours) } else { None })?;
        folder.write(PROGRAM, program.graph.to_string().as_bytes())?;
        folder.write(WEIGHTS, &tensor_file::content(imported.states()))?;
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
