//! Parameters in a file from which they are used without being copied.

use crate::folder::{FolderError, NewFolder};
use kernfusion::tensor_file::to_stored;
use kernfusion_codegen::States;
use kernfusion_runtime::artefact::StateDescription;
use safetensors::tensor::TensorInfo;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;

/// Parameters are aligned to this many bytes, a cache line, if those before them end at a multiple of it.
const ALIGNMENT: usize = 64;

/// Writes the parameters among these states; returns how many bytes they have.
pub(super) fn write(
    folder: &NewFolder,
    name: &str,
    described: &[StateDescription],
    states: &States,
) -> Result<usize, FolderError> {
    let mut parameters: Vec<_> =
        described.iter().filter(|state| state.is_stored).map(|state| &state.tensor).collect();
    // The format has no gaps, so what would shift others stands at the end, and there the smallest elements last.
    parameters.sort_by_key(|state| {
        let size = states.ty(&state.name).map_or(1, |ty| ty.dtype.size());
        (!state.bytes.is_multiple_of(ALIGNMENT), Reverse(size), state.name.clone())
    });
    let mut entries = Map::from_iter([("__metadata__".to_string(), json!({"format": "kernfusion"}))]);
    let mut end = 0;
    for state in &parameters {
        let ty = states.ty(&state.name).expect("the states of the model");
        let data_offsets = (end, end + state.bytes);
        end = data_offsets.1;
        let info = TensorInfo { dtype: to_stored(ty.dtype), shape: ty.shape, data_offsets };
        let info = serde_json::to_value(info).expect("an offset table has only strings and integers");
        entries.insert(state.name.clone(), info);
    }
    let mut header = Value::Object(entries).to_string().into_bytes();
    header.resize((8 + header.len()).next_multiple_of(ALIGNMENT) - 8, b' ');
    folder.write_with(name, &mut |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        parameters.iter().try_for_each(|state| {
            let value = states.get(&state.name);
            file.write_all(value.as_ref().map_or(&[], |value| value.bytes()))
        })
    })?;
    Ok(end)
}
