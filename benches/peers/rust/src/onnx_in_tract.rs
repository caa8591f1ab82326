//! An ONNX file in tract, which runs but does not train.

use crate::measure::{Row, Timing};
use anyhow::{Context, Result, bail};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::path::Path;
use tract_linalg::multithread::{Executor, set_default_executor};
use tract_onnx::prelude::*;

pub(crate) fn measure(file: &Path, inputs: &Path, outputs: &Path, timing: &Timing, row: Row) -> Result<Row> {
    set_default_executor(Executor::multithread(row.threads));
    let model = onnx()
        .model_for_path(file)
        .with_context(|| format!("reading {}", file.display()))?
        .into_optimized()?;
    let bytes = std::fs::read(inputs).with_context(|| format!("reading {}", inputs.display()))?;
    let given = SafeTensors::deserialize(&bytes)?;
    let mut values: TVec<TValue> = tvec!();
    for number in 0..model.input_outlets()?.len() {
        let name = &model.node(model.input_outlets()?[number].node).name;
        let view = given.tensor(name).with_context(|| format!("the inputs have no {name}"))?;
        let tensor = read(&view).with_context(|| format!("reading {name}"))?;
        values.push(tensor.cast_to_dt(model.input_fact(number)?.datum_type)?.into_owned().into());
    }
    let model = model.into_runnable()?;
    let first = model.run(values.clone())?.remove(0);
    write(outputs, first.try_as_plain_ram()?.as_slice::<f32>()?, first.shape())?;
    timing.measure(row, |_| Ok(model.run(values.clone())?[0].try_as_plain_ram()?.as_slice::<f32>()?[0]))
}

fn read(view: &TensorView) -> Result<Tensor> {
    let words = || view.data().chunks_exact(4).map(|word| word.try_into().expect("four bytes"));
    Ok(match view.dtype() {
        Dtype::F32 => Tensor::from_shape(view.shape(), &words().map(f32::from_le_bytes).collect::<Vec<_>>())?,
        Dtype::I32 => Tensor::from_shape(view.shape(), &words().map(i32::from_le_bytes).collect::<Vec<_>>())?,
        other => bail!("an input of {other:?}"),
    })
}

fn write(path: &Path, elements: &[f32], shape: &[usize]) -> Result<()> {
    let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes)?;
    Ok(safetensors::serialize_to_file([("output.0", view)], None, path)?)
}
