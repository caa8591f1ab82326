//! The folder of an imported model: a program in text form, the values of its states, and what it takes and gives.

use crate::common::error::{CliError, read_text};
use crate::common::folder::{Kind, expect};
use kernfusion::WeightType;
use kernfusion::compile::Tensors;
use kernfusion::init::Init;
use kernfusion::tensor_file::{self, Writable};
use kernfusion::trace::{Parameter, Program, Trace};
use kernfusion_import::{ImportError, Imported};
use kernfusion_ir::{DType, Graph, InputRole, TensorType, ValueId};
use kernfusion_lm::{FolderError, NewFolder};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The file of its program.
pub(crate) const PROGRAM: &str = "program.kir";
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

/// Extents that a file leaves open.
#[derive(clap::Args, Default)]
pub(crate) struct ExtentArgs {
    /// Of an archive or an ONNX file with open extents (dynamic_shapes): an axis of an input, and its extent; may be given several times
    #[arg(long, value_name = "INPUT.AXIS=N", value_parser = extent)]
    dim: Vec<(String, usize)>,
}

impl ExtentArgs {
    /// Opens an archive or an ONNX file with these extents.
    pub(crate) fn open(&self, archive: &Path) -> Result<Imported, CliError> {
        let extents: Vec<_> = self.dim.iter().map(|(name, extent)| (name.as_str(), *extent)).collect();
        Ok(Imported::open_sized(archive, &extents)?)
    }

    /// The model of an archive with these extents, or of the folder of an imported one.
    pub(crate) fn model(&self, path: &Path) -> Result<ImportedModel, CliError> {
        if path.is_dir() {
            self.only_if(false)?;
            return ImportedModel::of_folder(path);
        }
        let imported = self.open(path)?;
        let program = imported.program()?;
        let states = imported.states().iter().map(|state| Ok((state.name().to_string(), state.read()?)));
        Ok(ImportedModel { program, states: states.collect::<Result<_, ImportError>>()? })
    }

    /// Refuses extents where there is no archive.
    pub(crate) fn only_if(&self, is_archive: bool) -> Result<(), CliError> {
        match is_archive || self.dim.is_empty() {
            true => Ok(()),
            false => {
                Err(CliError::Usage("--dim is of an archive of torch.export.save, or of an ONNX file".into()))
            }
        }
    }
}

/// A name and an extent.
fn extent(text: &str) -> Result<(String, usize), &'static str> {
    let pair =
        text.rsplit_once('=').and_then(|(name, extent)| Some((name.to_string(), extent.parse().ok()?)));
    pair.filter(|(name, _)| !name.is_empty()).ok_or("it is INPUT.AXIS=N, such as input_ids.0=8")
}

/// A model from elsewhere: its program, and the values of its states.
pub(crate) struct ImportedModel {
    pub(crate) program: Program,
    pub(crate) states: Tensors,
}

impl ImportedModel {
    /// The model of a folder.
    fn of_folder(folder: &Path) -> Result<Self, CliError> {
        expect(folder, Kind::Imported)?;
        let states = tensor_file::read(&folder.join(WEIGHTS))?;
        let graph = read_graph(folder)?;
        let path = folder.join(SIGNATURE);
        let content = |reason: String| CliError::Content { path: path.clone(), reason };
        let Signature { trained, stopped, .. } =
            serde_json::from_str(&read_text(&path)?).map_err(|error| content(error.to_string()))?;
        let parameter = |name: String| {
            let mut states = graph.inputs().filter(|(.., role)| *role == InputRole::State);
            let ty = states.find(|(_, other, _)| *other == name).map(|(id, ..)| &graph[id].ty);
            let ty = ty.filter(|ty| ty.dtype == DType::F32);
            let ty = ty.ok_or_else(|| content(format!("the program has no state \"{name}\" of f32")))?;
            Ok(Parameter {
                name,
                shape: ty.shape.clone(),
                init: Init::Zeros,
                kept_as: WeightType::F32,
                trained: true,
            })
        };
        let parameters = trained.into_iter().map(parameter).collect::<Result<_, CliError>>()?;
        let stopped = stopped.into_iter().map(ValueId::from_index).collect();
        Ok(ImportedModel { program: Program { graph, parameters, buffers: vec![], stopped }, states })
    }

    /// The names and types of the inputs, but for those that random numbers are drawn from.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        let graph = &self.program.graph;
        let given = graph.inputs().filter(|(.., role)| *role == InputRole::Data);
        let given = given.map(|(id, name, _)| (name, &graph[id].ty));
        given.filter(|(name, ty)| !Trace::is_random_key(name, ty))
    }
}

/// Reads and verifies a program: a file, or that of an imported model in its folder.
pub(crate) fn read_graph(path: &Path) -> Result<Graph, CliError> {
    if path.is_dir() {
        expect(path, Kind::Imported)?;
    }
    let path = program_file(path);
    let text = read_text(&path)?;
    let content = |reason: String| CliError::Content { path: path.to_path_buf(), reason };
    Graph::parse_verified(&text).map_err(|error| content(error.to_string()))
}

/// The folder of a model that is about to be written, unless there is one that may not be replaced.
pub(crate) fn claim(path: &Path, replaces: bool) -> Result<NewFolder, CliError> {
    let is_ours = |name: &str| [PROGRAM, WEIGHTS, SIGNATURE].contains(&name);
    let folder = NewFolder::create(path, if replaces { Some(&is_ours) } else { None });
    Ok(folder.map_err(kernfusion_lm::Error::from)?)
}

/// Writes the folder of a model; it is there whole or not at all.
pub(crate) fn write<'t, T: Writable + 't>(
    folder: NewFolder,
    states: impl IntoIterator<Item = (&'t str, &'t T)>,
    program: &Program,
) -> Result<(), CliError> {
    let states: Vec<_> = states.into_iter().collect();
    let put = || {
        folder.write(PROGRAM, program.graph.to_string().as_bytes())?;
        folder.write_with(WEIGHTS, &mut |file| tensor_file::write_to(file, states.iter().copied()))?;
        let signature = serde_json::to_string_pretty(&Signature::new(program)).expect("names and numbers");
        folder.write(SIGNATURE, format!("{signature}\n").as_bytes())?;
        folder.commit()
    };
    put().map_err(unwritten)?;
    Ok(())
}

/// Why a folder was not written: a value that was asked for while it was may not be readable.
fn unwritten(error: FolderError) -> CliError {
    let error = match error {
        FolderError::Write { path, cause } => match cause.downcast::<ImportError>() {
            Ok(unread) => return unread.into(),
            Err(cause) => FolderError::Write { path, cause },
        },
        error => error,
    };
    kernfusion_lm::Error::from(error).into()
}

/// What a program takes and gives, in this order, and what training has to know of it.
#[derive(Serialize, Deserialize)]
struct Signature {
    inputs: Vec<Described>,
    outputs: Vec<Described>,
    /// The names of the states that are trained.
    trained: Vec<String>,
    /// The numbers of the values through which no gradient flows.
    stopped: Vec<usize>,
}

#[derive(Serialize, Deserialize)]
struct Described {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

impl Signature {
    fn new(program: &Program) -> Self {
        let graph = &program.graph;
        let described = |name: &str, ty: &TensorType| Described {
            name: name.into(),
            dtype: ty.dtype.name().into(),
            shape: ty.shape.clone(),
        };
        let data = graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
        let given = graph.outputs().iter().filter(|output| !output.updates_state);
        let trained = program.parameters.iter().filter(|parameter| parameter.trained);
        Signature {
            inputs: data.map(|(id, name, _)| described(name, &graph[id].ty)).collect(),
            outputs: given.map(|output| described(&output.name, &graph[output.value].ty)).collect(),
            trained: trained.map(|parameter| parameter.name.clone()).collect(),
            stopped: program.stopped.iter().map(|value| value.index()).collect(),
        }
    }
}
