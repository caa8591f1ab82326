//! Tensors of an archive: views of the bytes of a storage, which several may share.

use crate::archive::Archive;
use crate::error::ImportError;
use crate::pickle;
use crate::schema::{Payload, PayloadConfig, Size, TensorMeta};
use kernfusion::HostTensor;
use kernfusion_ir::{DType, TensorType};
use std::collections::{BTreeMap, HashMap};

/// The tensors of an archive by name.
pub(crate) struct Weights {
    /// For each name the folder of its file, and how it lies there.
    places: BTreeMap<String, (&'static str, Payload)>,
    /// The folders that are archives of their own.
    saved: BTreeMap<&'static str, Archive>,
}

/// One tensor of the archive.
pub(crate) struct Weight {
    /// Its value, row-major.
    pub(crate) value: HostTensor,
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

    /// Reads tensors; a file that several share is read once.
    ///
    /// # Errors
    /// A tensor is missing, pickled, of a dtype that no tensor here has, or reaches out of its file.
    pub(crate) fn read(&mut self, archive: &mut Archive, names: &[&str]) -> Result<Vec<Weight>, ImportError> {
        let mut by_file: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            let missing = || archive.wrong(format!("the archive has no tensor \"{name}\""));
            let (folder, payload) = self.places.get(*name).ok_or_else(missing)?;
            by_file.entry((folder, &payload.path_name)).or_default().push(at);
        }
        let mut weights: HashMap<usize, Weight> = HashMap::new();
        for ((folder, file), users) in by_file {
            let bytes = match self.saved.get_mut(folder) {
                Some(saved) => saved.read(file)?,
                None => archive.read(&format!("{folder}/{file}"))?,
            };
            for at in users {
                let (_, payload) = &self.places[names[at]];
                let weight = weight(payload, folder, &bytes);
                let wrong = |reason| archive.wrong(format!("tensor \"{}\": {reason}", names[at]));
                weights.insert(at, weight.map_err(wrong)?);
            }
        }
        Ok((0..names.len()).map(|at| weights.remove(&at).expect("read above")).collect())
    }
}

fn weight(payload: &Payload, folder: &str, storage: &[u8]) -> Result<Weight, String> {
    let meta = match (&payload.tensor_meta, payload.use_pickle) {
        (Some(meta), false) => meta,
        _ => return Err("it is pickled, and only plain tensors are read".into()),
    };
    let numbers = |sizes: &[Size]| sizes.iter().map(number).collect::<Result<Vec<_>, _>>();
    let (shape, strides) = (numbers(&meta.sizes)?, numbers(&meta.strides)?);
    let offset = number(&meta.storage_offset)?;
    let value = value(meta, &shape, &strides, offset, storage)?;
    let identity = format!("{folder}/{} {} {offset} {shape:?} {strides:?}", payload.path_name, meta.dtype);
    Ok(Weight { value, identity, requires_grad: meta.requires_grad })
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

/// The elements of a view, row-major.
fn value(
    meta: &TensorMeta,
    shape: &[usize],
    strides: &[usize],
    offset: usize,
    storage: &[u8],
) -> Result<HostTensor, String> {
    let (dtype, size) = stored(meta.dtype)?;
    let beyond = || format!("shape {shape:?} reaches out of its file of {} bytes", storage.len());
    let elements =
        shape.iter().try_fold(1, |product: usize, &extent| product.checked_mul(extent)).ok_or_else(beyond)?;
    let bytes = elements.checked_mul(size).ok_or_else(beyond)?;
    if shape.len() != strides.len() || bytes > storage.len() {
        return Err(beyond());
    }
    let start = offset.checked_mul(size).ok_or_else(beyond)?;
    let ty = TensorType::new(dtype, shape);
    if is_row_major(shape, strides) {
        let whole = start.checked_add(bytes).and_then(|end| storage.get(start..end)).ok_or_else(beyond)?;
        return converted(meta.dtype, &ty, whole);
    }
    let mut gathered = Vec::with_capacity(bytes);
    let mut at = vec![0; shape.len()];
    for _ in 0..elements {
        let place = at.iter().zip(strides).try_fold(offset, |sum: usize, (&i, &stride): (&usize, &usize)| {
            sum.checked_add(i.checked_mul(stride)?)
        });
        let first = place.and_then(|place| place.checked_mul(size)).ok_or_else(beyond)?;
        let end = first.checked_add(size).ok_or_else(beyond)?;
        gathered.extend_from_slice(storage.get(first..end).ok_or_else(beyond)?);
        advance(&mut at, shape);
    }
    converted(meta.dtype, &ty, &gathered)
}

fn is_row_major(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let fits = extent == 1 || stride == expected;
        expected *= extent;
        fits
    })
}

/// The next coordinates, row-major.
fn advance(at: &mut [usize], shape: &[usize]) {
    for (coordinate, &extent) in at.iter_mut().zip(shape).rev() {
        *coordinate += 1;
        if *coordinate < extent {
            return;
        }
        *coordinate = 0;
    }
}

/// PyTorch's `int64`, which becomes `i32`.
const LONG: u64 = 5;

/// What a scalar type of the schema is here, and how many bytes an element takes in the archive.
pub(crate) fn stored(scalar_type: u64) -> Result<(DType, usize), String> {
    match scalar_type {
        2 => Ok((DType::I8, 1)),
        4 => Ok((DType::I32, 4)),
        LONG => Ok((DType::I32, 8)),
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

fn converted(scalar_type: u64, ty: &TensorType, bytes: &[u8]) -> Result<HostTensor, String> {
    if scalar_type != LONG {
        return Ok(HostTensor::from_bytes(ty, bytes).expect("as many bytes as the type has"));
    }
    let wide = bytes.chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().expect("eight bytes")));
    let narrow = |x: i64| i32::try_from(x).map_err(|_| format!("{x} is no i32, which int64 is read as"));
    Ok(HostTensor::new(ty.shape.clone(), wide.map(narrow).collect::<Result<Vec<i32>, _>>()?))
}
