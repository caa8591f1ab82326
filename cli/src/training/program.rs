//! `kernfusion train --program`: a model from elsewhere, trained on batches of a file.

use crate::Outcome;
use crate::common::error::CliError;
use crate::common::imported::{self, ExtentArgs};
use crate::common::objective::{Loss, TARGET};
use crate::common::screen::{Screen, counted, grouped, progress};
use crate::training::stop;
use kernfusion::compile::{Target, Tensors};
use kernfusion::nn::Lora;
use kernfusion::optim::{Optimizer, Schedule, Session};
use kernfusion::{HostTensor, tensor_file};
use kernfusion_ir::{InputRole, TensorType};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// What `train` takes for a model from elsewhere.
#[derive(clap::Args)]
pub(crate) struct ArchiveArgs {
    /// Train a model from elsewhere instead of one of a preset: an archive of torch.export.save, an ONNX file, or the folder of an imported
    /// model. --data is then a file of tensors: for each input of the model one with an axis more in front, over which batches are taken in
    /// turn, and so for "target", whose classes are numbers from 0 on
    #[arg(long = "program", value_name = "FILE.pt2|FILE.onnx|DIR", requires_all = ["data", "loss", "out"], conflicts_with_all = OF_PRESETS)]
    archive: Option<PathBuf>,
    /// With --program: what becomes small, the cross-entropy or the mean square of the first output and "target", or output N, a scalar
    #[arg(long, value_name = "cross-entropy|mse|output:N", requires = "archive", conflicts_with_all = OF_PRESETS)]
    loss: Option<Loss>,
    #[command(flatten)]
    extents: ExtentArgs,
}

/// Flags of models that read a text. With them clap asks for no archive, so that `--loss` has to refuse them by itself.
const OF_PRESETS: [&str; 24] = [
    "preset",
    "config",
    "batch_size",
    "dropout",
    "tokenizer",
    "vocabulary",
    "align_vocabulary",
    "accumulate",
    "order",
    "validate_every",
    "validation_batches",
    "sample_every",
    "sample_tokens",
    "sample_prompt",
    "sample_top_k",
    "checkpoint_every",
    "freeze",
    "shard_optimizer",
    "init",
    "resume",
    "log",
    "tensorboard",
    "ui",
    "average_from",
];

/// What the other flags say of a run.
pub(crate) struct Run<'a> {
    pub(crate) data: &'a Path,
    pub(crate) out: &'a Path,
    pub(crate) overwrite: bool,
    pub(crate) steps: u64,
    pub(crate) optimizer: Optimizer,
    pub(crate) schedule: Schedule,
    pub(crate) clip: Option<f64>,
    pub(crate) seed: u64,
    pub(crate) lora: Option<Lora>,
    pub(crate) target: Target,
}

impl ArchiveArgs {
    /// The archive, if one is to be trained.
    pub(crate) fn archive(&self) -> Result<Option<&Path>, CliError> {
        self.extents.only_if(self.archive.is_some())?;
        Ok(self.archive.as_deref())
    }

    /// Trains a model, and writes its folder.
    pub(crate) fn train(&self, path: &Path, run: &Run<'_>, screen: &mut Screen) -> Outcome {
        let model = self.extents.model(path)?;
        let folder = imported::claim(run.out, run.overwrite)?;
        let data = tensor_file::read(run.data)?;
        let content = |reason: String| CliError::Content { path: run.data.into(), reason };
        let loss = self.loss.expect("asked for beside a program");
        let target = data.get(TARGET).map(HostTensor::ty).and_then(|ty| {
            let (_, batch) = ty.shape.split_first()?;
            Some(ty.with_shape(batch))
        });
        if target.is_none() && !matches!(loss, Loss::Output(_)) {
            return Err(content(format!("the tensor \"{TARGET}\" is missing, which --loss compares with")));
        }
        let step = loss.training_step(&model, target, (&run.optimizer, run.clip), run.lora.as_ref())?;
        loss.check(&model, data.get(TARGET)).map_err(content)?;
        let graph = &step.program.graph;
        let scalars = step.scalars(0, 0.0, 0);
        let expected = graph.inputs().filter(|(_, name, role)| {
            *role == InputRole::Data && scalars.iter().all(|(scalar, _)| scalar != name)
        });
        let expected: Vec<_> =
            expected.map(|(id, name, _)| (name.to_string(), graph[id].ty.clone())).collect();
        let batches = batches(&data, &expected).map_err(content)?;
        let mut session = step.session(&run.target, run.seed)?.with_schedule(run.schedule)?;
        let names: Vec<_> = model.states.keys().cloned().collect();
        for (name, value) in model.states {
            session.states().set(&name, &value).map_err(kernfusion::Error::from)?;
        }
        screen.line(format!(
            "model: {} parameters in {}; {}",
            grouped(model.program.parameter_count() as u64),
            path.display(),
            counted(batches.len(), "batch")
        ));
        let (stop, bar) = (stop::upon_signals()?, progress(run.steps, "{pos}/{len} steps, {eta} left"));
        let every = run.steps.div_ceil(20);
        for (step, batch) in (1..=run.steps).zip(batches.iter().cycle()) {
            let inputs: Vec<_> = batch.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            let loss = session.step(&inputs)?;
            bar.inc(1);
            let is_stopped = stop.load(Ordering::Relaxed);
            if step == 1 || step % every == 0 || step == run.steps || is_stopped {
                bar.suspend(|| screen.line(format!("step {step:>6}  loss {loss:.5}")));
            }
            if is_stopped {
                break;
            }
        }
        bar.finish_and_clear();
        let states = names.into_iter().map(|name| session.get(&name).map(|value| (name, value)));
        let mut states = states.collect::<kernfusion::Result<Tensors>>()?;
        run.lora.iter().try_for_each(|lora| merge(&mut states, lora, &session))?;
        imported::write(folder, states.iter().map(|(name, value)| (name.as_str(), value)), &model.program)?;
        let place = run.out.display();
        screen.line(format!("model with its new parameters in {place}: kernfusion run {place}"));
        Ok(match session.steps_done() < run.steps {
            true => ExitCode::from(stop::exit_code()),
            false => ExitCode::SUCCESS,
        })
    }
}

/// Adds adapters to the matrices that they belong to.
fn merge(states: &mut Tensors, lora: &Lora, session: &Session) -> kernfusion::Result<()> {
    let kept = session.states().names();
    for (name, value) in states.iter_mut() {
        let [a, b] = ["lora_a", "lora_b"].map(|end| format!("{name}.{end}"));
        if !kept.contains(&a) {
            continue;
        }
        let (a, b) = (session.get(&a)?, session.get(&b)?);
        let numbers = |tensor: &HostTensor| tensor.as_f32().expect("parameters are f32").to_vec();
        let mut merged = numbers(value);
        lora.merge(&mut merged, &numbers(&a), &numbers(&b));
        *value = HostTensor::new(value.shape(), merged);
    }
    Ok(())
}

/// The inputs of a step by name.
type Batch = Vec<(String, HostTensor)>;

/// The batches of a file: slices of its tensors along their first axis.
fn batches(data: &Tensors, expected: &[(String, TensorType)]) -> Result<Vec<Batch>, String> {
    let unknown = data.keys().find(|name| expected.iter().all(|(other, _)| other != *name));
    if let Some(name) = unknown {
        return Err(format!("the step takes no tensor \"{name}\""));
    }
    let mut batches: Vec<Batch> = vec![];
    for (at, (name, ty)) in expected.iter().enumerate() {
        let all = data.get(name).ok_or_else(|| format!("the tensor \"{name}\" is missing"))?;
        let found = all.ty();
        let count = match found.shape.split_first() {
            Some((0, _)) => return Err(format!("\"{name}\" has no batches: it is {found}")),
            Some((&count, rest)) if rest == ty.shape && found.dtype == ty.dtype => count,
            _ => {
                return Err(format!(
                    "\"{name}\" is {found}, and batches are of {ty} with an axis more in front"
                ));
            }
        };
        if at == 0 {
            batches.resize(count, vec![]);
        }
        if batches.len() != count {
            return Err(format!("\"{name}\" has {count} batches, \"{}\" {}", expected[0].0, batches.len()));
        }
        let bytes = all.bytes();
        for (number, batch) in batches.iter_mut().enumerate() {
            let own = &bytes[number * ty.bytes()..][..ty.bytes()];
            let tensor = HostTensor::from_bytes(ty, own).expect("as many bytes as the type has");
            batch.push((name.clone(), tensor));
        }
    }
    Ok(batches)
}
