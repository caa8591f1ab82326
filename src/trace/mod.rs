//! Tracing: ordinary Rust code over [`Tensor`] handles builds a graph.
//!
//! ```
//! use kernfusion::prelude::*;
//!
//! let trace = Trace::new();
//! let x = trace.input("x", [2, 3], DType::F32);
//! let y = (&x * 2.0 + 1.0).sum(&[-1]);
//! let program = trace.finish(&[("y", &y)])?;
//! assert_eq!(program.graph.output_value("y").map(|y| program.graph[y].ty.to_string()), Some("f32[2]".into()));
//! # Ok::<(), kernfusion::Error>(())
//! ```
//!
//! * Every node carries the line that called the method (`#[track_caller]` throughout) and the module path that was
//!   open ([`Trace::scope`]).
//! * A mistake does not panic. The trace keeps the first one, later operations go on with a value of a plausible type,
//!   and [`Trace::finish`] returns the mistake.

mod elementwise;
mod indexing;
mod insert;
mod movement;
mod product;
mod quantised;
mod reduction;
mod scan;
mod sorting;
mod source;
mod tensor;
#[cfg(test)]
mod tests;

pub use elementwise::Operand;
pub use movement::{Extent, Extents};
pub use scan::{Iteration, ScanOrder};
pub use sorting::Sorted;
pub(crate) use tensor::MAKES_SCALARS;
pub use tensor::Tensor;

use crate::Result;
use crate::init::Init;
use kernfusion_ir::{
    Builder, DType, Graph, InputRole, IrError, Location, Origin, Tensor as HostTensor, TensorType, ValueId,
};
use kernfusion_passes::{WeightType, quantize_weights};
use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic;
use std::rc::Rc;
use std::sync::Arc;

/// A program under construction. Clones are handles of the same one.
#[derive(Clone)]
pub struct Trace {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    /// The program, then the bodies of the loops that are open.
    frames: Vec<scan::Frame>,
    frames_made: u32,
    path: Arc<str>,
    /// The line that nodes carry, where it is not the caller's.
    line: Option<Location>,
    training: bool,
    product_dtype: Option<DType>,
    /// What matrices of parameters are kept as.
    stored: WeightType,
    /// Module paths whose parameters stay as they are.
    frozen: Vec<String>,
    /// Where not all parameters are trained: whether those of a name are.
    trained: Option<fn(&str) -> bool>,
    /// What layers are told, each setting under its type.
    settings: HashMap<TypeId, Rc<dyn Any>>,
    parameters: Vec<(Parameter, ValueId)>,
    buffers: Vec<Parameter>,
    updates: Vec<(String, ValueId)>,
    /// Losses that layers add in training.
    penalties: Vec<ValueId>,
    groups: usize,
    /// Values through which no gradient flows.
    stopped: BTreeSet<ValueId>,
    /// How many random numbers were drawn under each module path.
    draws: BTreeMap<Arc<str>, usize>,
    error: Option<IrError>,
}

/// A state input with a name, a shape and a rule for its first value: a trained tensor, or a buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Module path and name, such as `blocks.0.attn.qkv.weight`.
    pub name: String,
    /// The extents.
    pub shape: Vec<usize>,
    /// Its first value.
    pub init: Init,
    /// What it is kept as: `f32` unless [`Trace::store_matrices`] said otherwise, see [`Parameter::kept`].
    pub kept_as: WeightType,
    /// Whether training changes it; if not, it is frozen.
    pub trained: bool,
}

/// A finished program: a graph and what its parameters and buffers start from. All other states start from zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// Inputs, nodes, outputs and state updates.
    pub graph: Graph,
    /// The parameters in the order of their declaration.
    pub parameters: Vec<Parameter>,
    /// States that are not trained and do not start from zero, such as the running statistics of a batch norm.
    pub buffers: Vec<Parameter>,
    /// Values through which no gradient flows ([`Tensor::stop_gradient`]), which only [`Trace::insert`] needs: ascending.
    pub stopped: Vec<ValueId>,
}

impl Program {
    /// The number of trained numbers: those of all parameters that are not frozen.
    pub fn parameter_count(&self) -> usize {
        let trained = self.parameters.iter().filter(|parameter| parameter.trained);
        trained.map(|parameter| parameter.shape.iter().product::<usize>()).sum()
    }

    /// Asks the system for as much memory as the first values of all parameters and buffers take, and gives it back: to draw what there
    /// is no memory for would end the process.
    ///
    /// # Errors
    /// If memory is short, or a parameter has 2³⁴ elements or more, which no first values are drawn for.
    pub fn ensure_memory(&self) -> Result<()> {
        let kept = || self.parameters.iter().chain(&self.buffers);
        let bytes = |parameter: &Parameter| TensorType::new(DType::F32, parameter.shape.clone()).bytes();
        let all = kept().map(bytes).fold(0, usize::saturating_add);
        if kept().any(|parameter| bytes(parameter) >= 4 << 34) {
            return Err(IrError::Memory { bytes: all }.into());
        }
        let asked = Vec::<u8>::new().try_reserve_exact(all);
        asked.map_err(|_| IrError::Memory { bytes: all }.into())
    }

    /// The first values of all parameters and buffers, a function of the seed and each one's name.
    pub fn initial_parameters(&self, seed: u64) -> impl Iterator<Item = (String, HostTensor)> {
        let kept = self.parameters.iter().chain(&self.buffers);
        kept.flat_map(move |parameter| {
            parameter.kept(parameter.init.draw(seed, &parameter.name, &parameter.shape))
        })
    }
}

/// An open module path; dropping it returns to the one before.
#[must_use = "the scope ends where this is dropped"]
pub struct Scope {
    trace: Trace,
    outer: Arc<str>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.trace.inner.borrow_mut().path = self.outer.clone();
    }
}

/// A line that is not the caller's; dropping it returns to what was before.
#[must_use = "the line ends where this is dropped"]
pub struct Line {
    trace: Trace,
    outer: Option<Location>,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.trace.inner.borrow_mut().line = self.outer.take();
    }
}

impl Default for Trace {
    fn default() -> Self {
        Trace::new()
    }
}

impl Trace {
    /// An empty program in evaluating mode: dropout does nothing.
    pub fn new() -> Self {
        let inner = Inner {
            frames: vec![scan::Frame::new(0, "trace", 1)],
            frames_made: 0,
            path: "".into(),
            line: None,
            training: false,
            product_dtype: None,
            stored: WeightType::F32,
            frozen: vec![],
            trained: None,
            settings: HashMap::new(),
            parameters: vec![],
            buffers: vec![],
            updates: vec![],
            penalties: vec![],
            groups: 1,
            stopped: BTreeSet::new(),
            draws: BTreeMap::new(),
            error: None,
        };
        Trace { inner: Rc::new(RefCell::new(inner)) }
    }

    /// An empty program in training mode: dropout drops.
    pub fn training() -> Self {
        let trace = Trace::new();
        trace.inner.borrow_mut().training = true;
        trace
    }

    /// Whether layers behave as in training.
    pub fn is_training(&self) -> bool {
        self.inner.borrow().training
    }

    /// Lets layers that look at all rows of a batch together, as a [mixture of experts](crate::nn::Mixture) does, look at this many groups of
    /// equally many rows, at each by itself. Where it is a multiple of the number of microbatches, or of ranks, such a program can be computed
    /// in them. Rows that cannot be divided so are one group.
    pub fn set_groups(&self, groups: usize) {
        self.inner.borrow_mut().groups = groups.max(1);
    }

    /// In how many groups layers look at `rows` rows of a batch.
    pub fn groups(&self, rows: usize) -> usize {
        let groups = self.inner.borrow().groups;
        if rows.is_multiple_of(groups) { groups } else { 1 }
    }

    /// Lets products of `f32` operands read them rounded to `dtype` (`bf16` or `f16`); sums and results stay `f32`.
    /// This is mixed precision: parameters, gradients and all other operations keep their dtype.
    pub fn set_product_dtype(&self, dtype: DType) {
        self.inner.borrow_mut().product_dtype = Some(dtype);
    }

    /// Keeps the matrices among the parameters that the finished program only reads as this type, see [`quantize_weights`]: a
    /// model that is not trained any more takes a half to a seventh of the memory, and as little of the time where it only reads
    /// them once. They are read as `f32`.
    pub fn store_matrices(&self, stored: WeightType) {
        self.inner.borrow_mut().stored = stored;
    }

    /// What is kept of activations from run to run, where matrices are kept as they are: caches of whole numbers would need scales
    /// for each new row.
    pub(crate) fn stored_activations(&self) -> DType {
        self.inner.borrow().stored.float().unwrap_or(DType::BF16)
    }

    /// Freezes the parameters that are declared from now on under any of these module paths, such as `wte` or `blocks.0`:
    /// no gradient is traced for them, and an optimizer keeps no state. Gradients still flow through their layers.
    pub fn freeze(&self, paths: &[String]) {
        self.inner.borrow_mut().frozen.extend(paths.iter().cloned());
    }

    /// Trains, of the parameters that are declared from now on, only those whose names `trained` accepts.
    pub(crate) fn train_only(&self, trained: fn(&str) -> bool) {
        self.inner.borrow_mut().trained = Some(trained);
    }

    /// Tells the layers that are declared from now on a setting of theirs.
    pub(crate) fn tell_layers<T: Any>(&self, setting: T) {
        self.inner.borrow_mut().settings.insert(TypeId::of::<T>(), Rc::new(setting));
    }

    /// What layers were told under this type.
    pub(crate) fn told<T: Any>(&self) -> Option<Rc<T>> {
        self.inner.borrow().settings.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }

    /// Trains what is declared from now on, whatever was said before: a new head on a model that stays as it is.
    pub fn unfreeze(&self) {
        let inner = &mut *self.inner.borrow_mut();
        inner.frozen.clear();
        inner.trained = None;
        inner.settings.clear();
    }

    /// Whether a parameter is trained.
    fn trains(&self, name: &str) -> bool {
        let inner = self.inner.borrow();
        let under = |path: &String| {
            let rest = name.strip_prefix(path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        !inner.frozen.iter().any(under) && inner.trained.is_none_or(|trained| trained(name))
    }

    /// Opens a module under the current one, until the guard is dropped. The name may have dots (`blocks.0`).
    pub fn scope(&self, name: &str) -> Scope {
        let outer = self.path();
        self.at(if outer.is_empty() { name.into() } else { format!("{outer}.{name}").into() })
    }

    /// Opens the module of a full path, as a layer does that was declared there; the guard returns to the current one.
    pub fn at(&self, path: Arc<str>) -> Scope {
        let outer = std::mem::replace(&mut self.inner.borrow_mut().path, path);
        Scope { trace: self.clone(), outer }
    }

    /// Lets nodes and mistakes carry this line instead of the caller's, until the guard is dropped: that of a model which another
    /// program describes.
    pub fn at_line(&self, line: Location) -> Line {
        let outer = self.inner.borrow_mut().line.replace(line);
        Line { trace: self.clone(), outer }
    }

    /// The current module path; empty at the top.
    pub fn path(&self) -> Arc<str> {
        self.inner.borrow().path.clone()
    }

    /// A value that each run is given. The name is not prefixed with the open modules. Programs that draw random numbers have the inputs
    /// `seed` and `step`, and training steps those of [`Optimizer::scalars`](crate::optim::Optimizer::scalars).
    #[track_caller]
    pub fn input(&self, name: &str, shape: impl Into<Vec<usize>>, dtype: DType) -> Tensor {
        self.declare("input", name.into(), InputRole::Data, TensorType::new(dtype, shape))
    }

    /// A trained `f32` tensor, named by the open module path and `name`.
    #[track_caller]
    pub fn parameter(&self, name: &str, shape: impl Into<Vec<usize>>, init: Init) -> Tensor {
        let (name, shape) = (self.qualified(name), shape.into());
        let dtype = DType::F32;
        let ty = TensorType::new(dtype, shape.clone());
        let tensor = self.declare("parameter", name.clone(), InputRole::State, ty);
        let kept_as = WeightType::F32;
        let parameter = Parameter { trained: self.trains(&name), name, shape, init, kept_as };
        self.inner.borrow_mut().parameters.push((parameter, tensor.id()));
        tensor
    }

    /// A tensor that is kept from run to run and starts from zero, named by the open module path and `name`;
    /// [`Trace::update`] changes it.
    #[track_caller]
    pub fn state(&self, name: &str, shape: impl Into<Vec<usize>>, dtype: DType) -> Tensor {
        self.declare("state", self.qualified(name), InputRole::State, TensorType::new(dtype, shape))
    }

    /// An `f32` state that is not trained and starts from `init`, named by the open module path and `name`;
    /// [`Trace::update`] changes it.
    #[track_caller]
    pub fn buffer(&self, name: &str, shape: impl Into<Vec<usize>>, init: Init) -> Tensor {
        let (path, shape) = (self.qualified(name), shape.into());
        let tensor = self.state(name, shape.clone(), DType::F32);
        self.inner.borrow_mut().buffers.push(Parameter {
            name: path,
            shape,
            init,
            kept_as: WeightType::F32,
            trained: false,
        });
        tensor
    }

    /// Says which value a state or parameter takes after a run.
    #[track_caller]
    pub fn update(&self, state: &Tensor, value: &Tensor) {
        let (expected, got) = (state.ty(), value.ty());
        let name = state.state_name();
        let reason = match &name {
            None => Some("only a state can be updated".to_string()),
            Some(name) if expected != got => Some(format!("\"{name}\" is {expected}, its new value {got}")),
            Some(name) if self.inner.borrow().updates.iter().any(|(other, _)| other == name) => {
                Some(format!("\"{name}\" is updated twice"))
            }
            Some(_) if self.depth() > 0 => Some("states change after a loop, not in its body".into()),
            Some(_) => None,
        };
        // A failed attempt appends nothing and records the reason.
        let accepted = self.attempt("update", [state, value], |_, [_, value]| match reason {
            Some(reason) => Err(reason.into()),
            None => Ok(value),
        });
        if let (Some(value), Some(name)) = (accepted, name) {
            self.inner.borrow_mut().updates.push((name, value.id()));
        }
    }

    /// Adds a scalar that training shall make small beside the model's own loss, such as a balancing loss. The code that
    /// computes the model's loss adds [`Trace::penalty`] to it.
    #[track_caller]
    pub fn penalize(&self, loss: &Tensor) {
        let fits = loss.rank() == 0 && self.depth() == 0;
        loss.expect("penalize", |_| (!fits).then(|| "takes a scalar, outside of loops".into()));
        if fits {
            self.inner.borrow_mut().penalties.push(loss.id());
        }
    }

    /// The sum of all penalties so far, if there are any.
    #[track_caller]
    pub fn penalty(&self) -> Option<Tensor> {
        let penalties: Vec<_> = {
            let inner = self.inner.borrow();
            inner.penalties.iter().map(|&id| self.of_program(&inner, id)).collect()
        };
        penalties.into_iter().reduce(|sum, penalty| sum + penalty)
    }

    /// The parameters declared so far, with their handles.
    pub fn parameters(&self) -> Vec<(Parameter, Tensor)> {
        let inner = self.inner.borrow();
        let parameters = inner.parameters.iter();
        parameters.map(|(parameter, id)| (parameter.clone(), self.of_program(&inner, *id))).collect()
    }

    /// The values that each run is given, as declared so far: names and handles.
    pub fn data_inputs(&self) -> Vec<(String, Tensor)> {
        let inner = self.inner.borrow();
        let data = inner.frames[0].graph.inputs().filter(|(_, _, role)| *role == InputRole::Data);
        data.map(|(id, name, _)| (name.to_string(), self.of_program(&inner, id))).collect()
    }

    /// The handle of a value of the program, whatever loop is open.
    fn of_program(&self, inner: &Inner, id: ValueId) -> Tensor {
        Tensor::new(self.clone(), 0, id, inner.frames[0].graph[id].ty.clone())
    }

    /// The program so far with these results, and with the state updates.
    ///
    /// # Errors
    /// The first mistake that was made on this trace; an output name used twice, or that of an updated state; a state named as a matrix's scales.
    pub fn finish(&self, outputs: &[(&str, &Tensor)]) -> Result<Program> {
        for (i, (name, tensor)) in outputs.iter().enumerate() {
            let taken = outputs[..i].iter().any(|(other, _)| other == name);
            let updated = self.inner.borrow().updates.iter().any(|(state, _)| state == name);
            self.attempt("output", [*tensor], |_, [value]| match (taken, updated) {
                (true, _) => Err(format!("the name \"{name}\" is used twice").into()),
                (_, true) => Err(format!("the name \"{name}\" is that of an updated state").into()),
                _ => Ok(value),
            });
        }
        let inner = self.inner.borrow();
        if let Some(error) = &inner.error {
            return Err(error.clone().into());
        }
        let mut graph = inner.frames[0].graph.clone();
        outputs.iter().for_each(|(name, tensor)| graph.output(*name, tensor.id()));
        inner.updates.iter().for_each(|(state, value)| graph.update(state.clone(), *value));
        let mut parameters: Vec<_> =
            inner.parameters.iter().map(|(parameter, _)| parameter.clone()).collect();
        let names: BTreeSet<_> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        let narrow = quantize_weights(&mut graph, inner.stored, |name| names.contains(name))?;
        let narrow: BTreeMap<_, _> = narrow.into_iter().collect();
        for parameter in &mut parameters {
            if let Some(&kept_as) = narrow.get(&parameter.name) {
                (parameter.kept_as, parameter.trained) = (kept_as, false);
            }
        }
        let stopped = inner.stopped.iter().copied().collect();
        Ok(Program { graph, parameters, buffers: inner.buffers.clone(), stopped })
    }

    /// The first mistake made so far.
    pub fn error(&self) -> Option<IrError> {
        self.inner.borrow().error.clone()
    }

    fn qualified(&self, name: &str) -> String {
        let path = self.path();
        if path.is_empty() { name.into() } else { format!("{path}.{name}") }
    }

    #[track_caller]
    fn declare(&self, what: &'static str, name: String, role: InputRole, ty: TensorType) -> Tensor {
        let declared = self.attempt_at(0, what, &[], |b, _| scan::declared(b, &name, role, &ty));
        declared.unwrap_or_else(|| self.placeholder(&ty))
    }

    /// Appends nodes for a user's call of `op`, at the caller's line. If that fails, the trace keeps the reason with
    /// the types of `operands`, and the result is `None`.
    #[track_caller]
    fn attempt<const N: usize>(
        &self,
        op: &'static str,
        operands: [&Tensor; N],
        build: impl FnOnce(&mut Builder<'_>, [ValueId; N]) -> Built,
    ) -> Option<Tensor> {
        self.attempt_all(op, &operands, |b, ids| build(b, ids.try_into().expect("an id for each operand")))
    }

    /// As [`Trace::attempt`], for any number of operands.
    #[track_caller]
    fn attempt_all(
        &self,
        op: &'static str,
        operands: &[&Tensor],
        build: impl FnOnce(&mut Builder<'_>, &[ValueId]) -> Built,
    ) -> Option<Tensor> {
        self.attempt_at(self.depth(), op, operands, build)
    }

    /// As [`Trace::attempt_all`], in the frame of that depth.
    #[track_caller]
    fn attempt_at(
        &self,
        depth: usize,
        op: &'static str,
        operands: &[&Tensor],
        build: impl FnOnce(&mut Builder<'_>, &[ValueId]) -> Built,
    ) -> Option<Tensor> {
        let caller = panic::Location::caller();
        let location = self.inner.borrow().line.clone().unwrap_or_else(|| caller.into());
        let origin = Origin::new(Some(location), self.path());
        let ids: std::result::Result<Vec<_>, Reason> = operands
            .iter()
            .map(|operand| match operand.trace().is(self) {
                true => self.resolve(operand, depth),
                false => Err("the operands belong to different traces".into()),
            })
            .collect();
        let built = ids.and_then(|ids| {
            let graph = &mut self.inner.borrow_mut().frames[depth].graph;
            let id = build(&mut Builder::new(graph, origin.clone()), &ids)?;
            Ok((id, graph[id].ty.clone()))
        });
        match built {
            Ok((id, ty)) => Some(Tensor::new(self.clone(), self.frame(depth), id, ty)),
            Err(Reason(reason)) => {
                let types: Vec<_> = operands.iter().map(|operand| operand.ty().to_string()).collect();
                self.fail(IrError::Type { op, operands: types.join(", "), reason, origin });
                None
            }
        }
    }

    /// Keeps the first mistake.
    fn fail(&self, error: IrError) {
        self.inner.borrow_mut().error.get_or_insert(error);
    }

    /// What stands for a value that could not be built; the program is never run.
    fn placeholder(&self, ty: &TensorType) -> Tensor {
        let shape: &[usize] = if ty.fault().is_none() { &ty.shape } else { &[] };
        let ty = ty.with_shape(shape);
        let depth = self.depth();
        let id = {
            let graph = &mut self.inner.borrow_mut().frames[depth].graph;
            let id = Builder::new(graph, Origin::default()).full(0.0, &ty);
            id.expect("zero is a value of every dtype and a scalar broadcasts to every shape")
        };
        Tensor::new(self.clone(), self.frame(depth), id, ty)
    }

    fn is(&self, other: &Trace) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }
}

/// Why a value could not be built; [`Trace::attempt`] adds op, operand types, line and module path.
struct Reason(String);

type Built = std::result::Result<ValueId, Reason>;

impl From<IrError> for Reason {
    fn from(error: IrError) -> Self {
        match error {
            IrError::Type { reason, .. } => Reason(reason),
            other => Reason(other.to_string()),
        }
    }
}

impl From<String> for Reason {
    fn from(reason: String) -> Self {
        Reason(reason)
    }
}

impl From<&str> for Reason {
    fn from(reason: &str) -> Self {
        Reason(reason.into())
    }
}
