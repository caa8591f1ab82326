//! Tensors of an ONNX file: initializers and constants, in the file itself or in others beside it.

use super::messages::TensorProto;
use super::quantized::{self, UINT8, kept_type};
use crate::call::Fault;
use crate::state::Value;
use crate::storage::{Section, Storage};
use crate::view::View;
use kernfusion::{HostTensor, input_file};
use kernfusion_ir::{DType, TensorType};
use std::collections::HashMap;
use std::io;
use std::path::{Component, Path};

/// A tensor whose numbers are known when the file is read.
#[derive(Debug, Clone)]
pub(crate) struct Constant {
    pub(crate) ty: TensorType,
    numbers: Numbers,
    /// Whether it is `uint8`, which is kept less 128.
    pub(super) has_no_sign: bool,
}

#[derive(Debug, Clone)]
enum Numbers {
    /// Of `int64`, which may be beyond `i32` where no tensor is made of them, as the end of a slice is.
    Wide(Vec<i64>),
    Tensor(HostTensor),
}

impl Constant {
    pub(super) fn wide(ty: TensorType, numbers: Vec<i64>) -> Self {
        Constant { ty, numbers: Numbers::Wide(numbers), has_no_sign: false }
    }

    /// A vector of whole numbers.
    pub(crate) fn vector(numbers: Vec<i64>) -> Self {
        Constant::wide(TensorType::new(DType::I32, [numbers.len()]), numbers)
    }

    /// A whole number.
    pub(crate) fn scalar(number: i64) -> Self {
        Constant::wide(TensorType::scalar(DType::I32), vec![number])
    }

    /// The tensor; `int64` becomes `i32`.
    ///
    /// # Errors
    /// A number is no `i32`.
    pub(crate) fn tensor(&self) -> Result<HostTensor, Fault> {
        match &self.numbers {
            Numbers::Tensor(tensor) => Ok(tensor.clone()),
            Numbers::Wide(numbers) => {
                let narrow =
                    |&x: &i64| i32::try_from(x).map_err(|_| format!("{x} is no i32, which int64 is read as"));
                let narrow = numbers.iter().map(narrow).collect::<Result<Vec<_>, _>>()?;
                Ok(HostTensor::new(self.ty.shape.clone(), narrow))
            }
        }
    }

    /// The same numbers of `int64` in another shape; nothing of others.
    pub(crate) fn reshaped(&self, ty: &TensorType) -> Option<Self> {
        let is_same = ty.dtype == self.ty.dtype && ty.elements() == self.ty.elements();
        let is_wide = is_same && matches!(self.numbers, Numbers::Wide(_));
        is_wide.then(|| Constant { ty: ty.clone(), ..self.clone() })
    }

    /// Its whole numbers or truth values, row-major; nothing of floats.
    pub(crate) fn whole(&self) -> Option<Vec<i64>> {
        match &self.numbers {
            Numbers::Wide(numbers) => Some(numbers.clone()),
            Numbers::Tensor(_) if self.ty.dtype.is_float() => None,
            Numbers::Tensor(tensor) => Some(tensor.to_f64().into_iter().map(|x| x as i64).collect()),
        }
    }

    /// The whole number that all its elements are.
    pub(super) fn everywhere(&self) -> Option<i64> {
        let whole = self.whole()?;
        let first = *whole.first()?;
        whole.iter().all(|&number| number == first).then_some(first)
    }

    /// Its numbers, row-major.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        match &self.numbers {
            Numbers::Wide(numbers) => numbers.iter().map(|&x| x as f64).collect(),
            Numbers::Tensor(tensor) => tensor.to_f64(),
        }
    }
}

impl From<HostTensor> for Constant {
    fn from(tensor: HostTensor) -> Self {
        Constant { ty: tensor.ty(), numbers: Numbers::Tensor(tensor), has_no_sign: false }
    }
}

const INT64: i32 = 7;

/// The files in the folder of a model that have tensors of it; each is opened once.
pub(super) struct Beside<'m> {
    model: &'m Path,
    files: HashMap<String, Section>,
}

/// The type of a tensor of a file, and how many bytes an element has there.
///
/// # Errors
/// There is no such type here.
pub(super) fn described(proto: &TensorProto) -> Result<(TensorType, usize), Fault> {
    let (dtype, size) = kept_type(proto.data_type)?;
    let shape: Result<Vec<_>, _> = proto.dims.iter().map(|&extent| usize::try_from(extent)).collect();
    let ty = TensorType::new(dtype, shape.map_err(|_| "it has a negative extent")?);
    ty.fault().map_or(Ok((ty.clone(), size)), Err)
}

impl<'m> Beside<'m> {
    /// None is open yet.
    pub(super) fn new(model: &'m Path) -> Self {
        Beside { model, files: HashMap::new() }
    }

    /// Reads a tensor of the model.
    ///
    /// # Errors
    /// It has no type here, or other bytes than its type has; the file that it names is not beside the model, or is too short.
    pub(super) fn read(&mut self, proto: &TensorProto) -> Result<Constant, Fault> {
        let (ty, size) = described(proto)?;
        let bytes = ty.elements() * size;
        let mut content = match proto.data_location {
            0 if proto.raw_data.is_empty() => listed(proto, ty.dtype),
            0 => proto.raw_data.to_vec(),
            1 => self.storage(proto, bytes)?.read().map_err(|error| error.to_string())?,
            other => return Err(format!("its numbers are at the place {other}, which is not known")),
        };
        if content.len() != bytes {
            return Err(format!("{ty} takes {bytes} bytes, and it has {}", content.len()));
        }
        if proto.data_type == INT64 {
            let word = |word: &[u8]| i64::from_le_bytes(word.try_into().expect("eight bytes"));
            return Ok(Constant::wide(ty, content.chunks_exact(8).map(word).collect()));
        }
        let has_no_sign = proto.data_type == UINT8;
        if has_no_sign {
            quantized::shift(&mut content);
        }
        let tensor = HostTensor::from_bytes(&ty, &content).expect("as many bytes as the type has");
        Ok(Constant { has_no_sign, ..tensor.into() })
    }

    /// The value of a state: one in another file stays there.
    ///
    /// # Errors
    /// As [`Beside::read`].
    pub(super) fn value(&mut self, proto: &TensorProto) -> Result<Value, Fault> {
        // What is kept less 128 is not what another file has.
        if proto.data_location != 1 || proto.data_type == UINT8 {
            return Ok(Value::Held(self.read(proto)?.tensor()?));
        }
        let (ty, size) = described(proto)?;
        let storage = self.storage(proto, ty.elements() * size)?;
        Ok(Value::Stored(View::new(storage, ty, size, None, 0)?))
    }

    /// The bytes of numbers in another file, which stands in the folder of the model or below.
    fn storage(&mut self, proto: &TensorProto, bytes: usize) -> Result<Storage, Fault> {
        let entry = |key: &str| proto.external_data.iter().find(|entry| entry.key == key);
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(entry) => match entry.value.parse::<u64>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!("its {key} in another file is \"{}\"", entry.value)),
            },
        };
        let location = entry("location").map_or("", |entry| entry.value.as_str());
        let is_inside = Path::new(location)
            .components()
            .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if location.is_empty() || !is_inside {
            return Err(format!("its numbers are in \"{location}\", which is not beside the model"));
        }
        let offset = number("offset")?.unwrap_or(0);
        if number("length")?.is_some_and(|length| length != bytes as u64) {
            return Err(format!("it takes {bytes} bytes, and its length is said to be another one"));
        }
        let file = self.file(location).map_err(|cause| format!("cannot read {location}: {cause}"))?;
        let storage = file.part(offset, bytes as u64).and_then(|section| {
            Storage::new(self.model, &format!("tensor \"{}\" ({location})", proto.name), section, None)
        });
        let length = file.length();
        storage.ok_or_else(|| {
            format!("its {bytes} bytes from {offset} reach out of {location}, which has {length}")
        })
    }

    fn file(&mut self, location: &str) -> io::Result<Section> {
        if let Some(file) = self.files.get(location) {
            return Ok(file.clone());
        }
        let folder = self.model.parent().unwrap_or(Path::new(""));
        let file = Section::of(input_file::open(&folder.join(location))?)?;
        self.files.insert(location.into(), file.clone());
        Ok(file)
    }
}

/// The bytes of numbers that are fields of the message.
fn listed(proto: &TensorProto, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => proto.float_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F64 => proto.double_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::U32 => proto.uint64_data.iter().flat_map(|&x| (x as u32).to_le_bytes()).collect(),
        DType::I32 if proto.data_type == INT64 => {
            proto.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        DType::I32 => proto.int32_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        // The bits of a half are the low ones of a field.
        DType::F16 | DType::BF16 => proto.int32_data.iter().flat_map(|&x| (x as u16).to_le_bytes()).collect(),
        DType::Bool => proto.int32_data.iter().map(|&x| u8::from(x != 0)).collect(),
        DType::I8 => proto.int32_data.iter().map(|&x| x as u8).collect(),
    }
}
