//! Where the tensors of an archive lie.

use crate::archive::Archive;
use crate::error::ImportError;
use crate::pickle;
use crate::schema::{Payload, PayloadConfig, Size, TensorMeta};
use crate::storage::Storage;
use crate::view::View;
use kernfusion_ir::{DType, TensorType};
use std::collections::BTreeMap;

/// The tensors of an archive by name.
pub(crate) struct Weights {
    /// For each name the folder of its file, and how it lies there.
    places: BTreeMap<String, (&'static str, Payload)>,
    /// The folders that are archives of their own.
    saved: BTreeMap<&'static str, Archive>,
}

/// One tensor of the archive.
pub(crate) struct Weight {
    /// Where it lies.
    pub(crate) view: View,
    /// What only tensors that are one and the same have in common.
    pub(crate) identity: String,
    /// Whether gradients were asked for.
    pub(crate) requires_grad: bool,
}

const WEIGHTS: &str = "data/weights";
const CONSTANTS: &str = "data/constants";

impl Weights {
    /// Reads where the tensors of a model are.
    pub(crate) fn open(archive: &mut Archive, model: &str) -> Result<Self, ImportError> {
        let (mut places, mut saved) = (BTreeMap::new(), BTreeMap::new());
        for (folder, kind) in [(CONSTANTS, "constants"), (WEIGHTS, "weights")] {
            let file = format!("{folder}/{model}_{kind}_config.json");
            let pickled = format!("{folder}/{model}.pt");
            if !archive.has(&file) && archive.has(&pickled) {
                let mut own = archive.open_saved(&pickled)?;
                let program = own.read("data.pkl")?;
                let tensors = pickle::tensors(&program).map_err(|reason| {
                    archive.wrong(format!("{pickled}: its pickle is not of tensors: {reason}"))
                })?;
                places.extend(tensors.into_iter().map(|(name, payload)| (name, (folder, payload))));
                saved.insert(folder, own);
                continue;
            }
            let bytes = archive.read(&file)?;
            let config: PayloadConfig =
                serde_json::from_slice(&bytes).map_err(|error| archive.wrong(format!("{file}: {error}")))?;
            places.extend(config.config.into_iter().map(|(name, payload)| (name, (folder, payload))));
        }
        Ok(Weights { places, saved })
    }

    /// Where a tensor lies.
    ///
    /// # Errors
    /// It is missing, pickled, of a dtype that no tensor here has, or reaches out of its file.
    pub(crate) fn find(&mut self, archive: &mut Archive, name: &str) -> Result<Weight, ImportError> {
        let missing = || archive.wrong(format!("the archive has no tensor \"{name}\""));
        let (folder, payload) = self.places.get(name).ok_or_else(missing)?;
        let file = &payload.path_name;
        let storage = match self.saved.get_mut(folder) {
            Some(saved) => saved.storage(file)?,
            None => archive.storage(&format!("{folder}/{file}"))?,
        };
        let storage = storage.named(format!("tensor \"{name}\" ({folder}/{file})"));
        let weight = weight(payload, folder, storage);
        weight.map_err(|reason| archive.wrong(format!("tensor \"{name}\": {reason}")))
    }
}

fn weight(payload: &Payload, folder: &str, storage: Storage) -> Result<Weight, String> {
    let meta = match (&payload.tensor_meta, payload.use_pickle) {
        (Some(meta), false) => meta,
        _ => return Err("it is pickled, and only plain tensors are read".into()),
    };
    let numbers = |sizes: &[Size]| sizes.iter().map(number).collect::<Result<Vec<_>, _>>();
    let (shape, strides) = (numbers(&meta.sizes)?, numbers(&meta.strides)?);
    let offset = number(&meta.storage_offset)?;
    let identity = format!("{folder}/{} {} {offset} {shape:?} {strides:?}", payload.path_name, meta.dtype);
    let (dtype, size) = stored(meta.dtype)?;
    let view = View::new(storage, TensorType::new(dtype, shape), size, Some(strides), offset)?;
    Ok(Weight { view, identity, requires_grad: meta.requires_grad })
}

fn number(size: &Size) -> Result<usize, String> {
    match size {
        Size::Int(size) => usize::try_from(*size).map_err(|_| format!("it has the extent {size}")),
        Size::Expression(size) => Err(format!(
            "its extent {} is open: export it with the shapes of the run, without dynamic_shapes",
            size.expr_str
        )),
    }
}

/// What a scalar type of the schema is here, and how many bytes an element takes in the archive: `int64` becomes `i32`.
pub(crate) fn stored(scalar_type: u64) -> Result<(DType, usize), String> {
    match scalar_type {
        2 => Ok((DType::I8, 1)),
        4 => Ok((DType::I32, 4)),
        5 => Ok((DType::I32, 8)),
        6 => Ok((DType::F16, 2)),
        7 => Ok((DType::F32, 4)),
        8 => Ok((DType::F64, 8)),
        12 => Ok((DType::Bool, 1)),
        13 => Ok((DType::BF16, 2)),
        34 => Ok((DType::U32, 4)),
        other => {
            const OTHERS: [(u64, &str); 6] = [
                (1, "uint8"),
                (3, "int16"),
                (9, "complex32"),
                (10, "complex64"),
                (11, "complex128"),
                (28, "uint16"),
            ];
            let name = OTHERS.iter().find(|(code, _)| *code == other).map(|(_, name)| name.to_string());
            let name = name.unwrap_or_else(|| format!("the scalar type {other}"));
            Err(format!("no tensor here is of {name}"))
        }
    }
}

/// The type of a tensor of the graph.
pub(crate) fn tensor_type(meta: &TensorMeta) -> Result<TensorType, String> {
    let shape = meta.sizes.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let ty = TensorType::new(stored(meta.dtype)?.0, shape);
    ty.fault().map_or(Ok(ty.clone()), Err)
}
