//! What a model from elsewhere is trained for, and its training step.

use crate::common::error::CliError;
use crate::common::imported::ImportedModel;
use crate::common::screen::counted;
use kernfusion::HostTensor;
use kernfusion::loss::{cross_entropy, mse};
use kernfusion::nn::{Lora, is_adapter};
use kernfusion::optim::{Optimizer, TrainStep};
use kernfusion::trace::{Tensor, Trace};
use kernfusion_ir::{DType, TensorType};
use std::str::FromStr;

/// What becomes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The cross-entropy of the first output and the target.
    CrossEntropy,
    /// The mean square of what lacks from the first output to the target.
    Mse,
    /// An output that is a loss itself.
    Output(usize),
}

/// The input that outputs are compared with.
pub(crate) const TARGET: &str = "target";

impl FromStr for Loss {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.strip_prefix("output:").map(str::parse)) {
            ("cross-entropy", _) => Ok(Loss::CrossEntropy),
            ("mse", _) => Ok(Loss::Mse),
            (_, Some(Ok(number))) => Ok(Loss::Output(number)),
            _ => Err("it is cross-entropy, mse or output:N, such as output:0"),
        }
    }
}

impl Loss {
    /// The type of the target, if there is one, for a first output of this type: its classes, or what it should be.
    fn target(self, output: &TensorType) -> Option<TensorType> {
        match self {
            Loss::CrossEntropy => {
                let rows = &output.shape[..output.rank().saturating_sub(1)];
                Some(TensorType::new(DType::I32, rows))
            }
            Loss::Mse => Some(output.clone()),
            Loss::Output(_) => None,
        }
    }

    /// The loss of a model's outputs, beside the target.
    fn of(self, outputs: &[Tensor], target: Option<&Tensor>) -> Tensor {
        match (self, target) {
            (Loss::Output(number), _) => outputs[number].clone(),
            (Loss::Mse, Some(target)) => mse(&outputs[0], target),
            (_, target) => cross_entropy(&outputs[0], target.expect("all other losses have one")),
        }
    }

    /// Refuses a target with numbers that are no classes of a model's first output: for a cross-entropy each leaves a loss that means
    /// nothing.
    pub(crate) fn check(self, model: &ImportedModel, target: Option<&HostTensor>) -> Result<(), String> {
        let (Loss::CrossEntropy, Some(target)) = (self, target.and_then(HostTensor::as_i32)) else {
            return Ok(());
        };
        let graph = &model.program.graph;
        let output = graph.outputs().iter().find(|output| !output.updates_state);
        let classes = output.and_then(|output| graph[output.value].ty.shape.last().copied()).unwrap_or(0);
        let is_class = |number: i32| usize::try_from(number).is_ok_and(|number| number < classes);
        let Some(number) = target.iter().find(|number| !is_class(**number)) else { return Ok(()) };
        let last = classes.saturating_sub(1);
        Err(format!(
            "\"{TARGET}\" has {number}, and the model has {}, 0 to {last}",
            counted(classes, "class")
        ))
    }

    /// The step that makes this loss of a model small. The data inputs of its program are the model's and, if there is one, [`TARGET`], whose
    /// type follows from the first output unless it is given. With `lora` adapters of its matrices are trained, and nothing else.
    ///
    /// # Errors
    /// The model lacks the output; the target does not fit; the loss is no scalar; no matrix is adapted.
    pub(crate) fn training_step(
        self,
        model: &ImportedModel,
        target: Option<TensorType>,
        (optimizer, clip): (&Optimizer, Option<f64>),
        lora: Option<&Lora>,
    ) -> Result<TrainStep, CliError> {
        let trace = Trace::training();
        lora.into_iter().for_each(|lora| trace.adapt(lora));
        let given = model.inputs().map(|(name, ty)| (name, trace.input(name, ty.shape.clone(), ty.dtype)));
        let given: Vec<_> = given.collect();
        let given: Vec<_> = given.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let outputs = trace.insert(&model.program, &given).into_iter().map(|(_, output)| output);
        let outputs: Vec<_> = outputs.collect();
        let is_adapted = trace.parameters().iter().any(|(parameter, _)| is_adapter(&parameter.name));
        if lora.is_some() && !is_adapted {
            let reason = "--lora-targets: no matrix of the model has such a name; `import` lists them in signature.json";
            return Err(CliError::Usage(reason.into()));
        }
        let number = if let Loss::Output(number) = self { number } else { 0 };
        let Some(output) = outputs.get(number) else {
            let reason =
                format!("--loss output:{number}: the model has {}", counted(outputs.len(), "output"));
            return Err(CliError::Usage(reason));
        };
        let ty = output.ty();
        if matches!(self, Loss::Output(_)) && !(ty.rank() == 0 && ty.dtype.is_float()) {
            let reason = format!("--loss output:{number}: it is {ty}, not a scalar of floats");
            return Err(CliError::Usage(reason));
        }
        let target = self.target(&ty).map(|own| target.unwrap_or(own));
        let target = target.map(|ty| trace.input(TARGET, ty.shape, ty.dtype));
        let loss = self.of(&outputs, target.as_ref());
        TrainStep::new(&loss, optimizer, clip).map_err(|error| {
            // The line that it names is of this program.
            CliError::Usage(format!("--loss: {}", error.to_string().lines().next().unwrap_or_default()))
        })
    }
}
