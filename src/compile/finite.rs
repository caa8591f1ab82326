//! Which operation made the first NaN or infinity of a run.
//!
//! With [`Target::check_finite`] every run is looked at when it is over: its results and the new values of its states. If one is
//! not finite, the same run is repeated from the states as they were, eagerly, one kernel for each traced operation, and
//! what each of them gives is looked at, too. From the result that is not finite the way leads back, along operands that are
//! not finite either, to the operation that made it of others: that is what [`NonFinite`] names, with the user's line.
//!
//! Without it nothing is done. With it, states are copied before every run.

use super::{Code, Mode, Target, compile};
use crate::error::{Error, Result};
use kernfusion_codegen::{Outputs, States};
use kernfusion_ir::{Graph, InputRole, Op, Origin, Tensor, ValueId};
use std::collections::BTreeMap;
use std::fmt;

/// A run that gave a number that is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct NonFinite {
    /// The result or state that is not finite.
    pub result: String,
    /// What it has: `NaN` or an infinity.
    pub has: &'static str,
    /// Where it was made.
    pub maker: Maker,
}

/// Where a number that is not finite was made.
#[derive(Debug, Clone, PartialEq)]
pub enum Maker {
    /// An operation made it of numbers that were none of its kind.
    Operation {
        /// The op's name.
        op: &'static str,
        /// What it made: `NaN` or an infinity.
        made: &'static str,
        /// The type of its result.
        ty: String,
        /// Whether it belongs to gradients or updates.
        in_backward: bool,
        /// The largest magnitude among its finite operands.
        largest: f64,
        /// If it made a NaN of infinities: where the first of these was made, if an operation did.
        infinity: Option<Box<Maker>>,
        /// The user's line, and the module.
        origin: Origin,
    },
    /// It was there before: in an input or a state, or it is a constant.
    Given {
        /// The input's or state's name; none of a constant.
        name: Option<String>,
    },
    /// One operation after another gives finite numbers: the compiled kernels round or order differently.
    Nowhere,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {}: {}", self.result, self.has, self.maker)
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Maker::Operation { op, made, ty, in_backward, largest, infinity, origin } => {
                let half = if *in_backward { " of backward" } else { "" };
                let operands = if infinity.is_some() { "of infinities" } else { "of finite numbers" };
                write!(f, "{op}{half} made {made} {operands} up to {largest:.3e}, {ty}{origin}")?;
                infinity.iter().try_for_each(|infinity| write!(f, "\n  the infinity: {infinity}"))
            }
            Maker::Given { name: Some(name) } => write!(f, "\"{name}\" was not finite before"),
            Maker::Given { name: None } => f.write_str("the program has it as a constant"),
            Maker::Nowhere => f.write_str(
                "but computed one operation after another (mode eager) the same run is finite; its kernels round elsewhere",
            ),
        }
    }
}

impl std::error::Error for NonFinite {}

/// What is needed to repeat a run.
pub(super) struct FiniteCheck {
    graph: Graph,
    states: States,
    target: Target,
}

/// States as they were.
pub(super) type Saved = Vec<(String, Tensor)>;

impl FiniteCheck {
    pub(super) fn new(graph: &Graph, states: &States, target: &Target) -> Self {
        let mut graph = graph.clone();
        graph.mark();
        let threads = Target::cpu().threads(target.threads).precision(target.precision);
        FiniteCheck { graph, states: states.clone(), target: threads.mode(Mode::Eager) }
    }

    /// Copies of all states of the program.
    pub(super) fn save(&self) -> Saved {
        let states = self.graph.inputs().filter(|(_, _, role)| *role == InputRole::State);
        states.filter_map(|(_, name, _)| Some((name.to_string(), self.states.get(name)?))).collect()
    }

    /// Looks at what a run has given, and repeats it if that is not finite.
    pub(super) fn check(&self, outputs: &Outputs, saved: &Saved, inputs: &[(&str, &Tensor)]) -> Result<()> {
        for output in self.graph.outputs() {
            let new = match output.updates_state {
                true => self.states.get(&output.name).map(|tensor| Seen::of(&tensor)),
                false => outputs.get(&output.name).map(Seen::of),
            };
            if let Some(has) = new.and_then(Seen::has) {
                let seen = self.repeat(saved, inputs)?;
                let maker = match seen.get(&output.value).copied().and_then(Seen::has) {
                    Some(_) => self.maker(&seen, output.value),
                    None => Maker::Nowhere,
                };
                let result = output.name.clone();
                return Err(Error::NonFinite(Box::new(NonFinite { result, has, maker })));
            }
        }
        Ok(())
    }

    /// What each node of the program gives, one operation after another.
    fn repeat(&self, saved: &Saved, inputs: &[(&str, &Tensor)]) -> Result<BTreeMap<ValueId, Seen>> {
        let states = States::new();
        saved.iter().try_for_each(|(name, tensor)| states.set(name, tensor))?;
        let mut compiled = compile(&self.graph, &states, &self.target)?;
        let Code::Whole(executable) = &mut compiled.code else { unreachable!("eager programs are whole") };
        let mut seen = BTreeMap::new();
        for (id, name, _) in self.graph.inputs() {
            let given = inputs.iter().find(|(other, _)| *other == name).map(|(_, tensor)| *tensor);
            let kept = saved.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor);
            seen.extend(given.or(kept).map(|tensor| (id, Seen::of(tensor))));
        }
        let graph = executable.plan().graph.clone();
        executable.run_seen(inputs, &mut |executable, kernel| {
            for buffer in graph.kernels[kernel].writes() {
                let Some(node) = graph.values.get(&buffer).and_then(|value| graph.nodes.get(value)) else {
                    continue;
                };
                let here = Seen::of(&executable.look(buffer));
                let sources = node.origin.sources().iter().filter(|source| node.origin.stands_for(**source));
                seen.extend(sources.map(|&source| (source, here)));
            }
        })?;
        // Views and constants are computed where they are read.
        for id in self.graph.ids() {
            if !seen.contains_key(&id) {
                let node = &self.graph[id];
                let operands = node.operands.iter().filter_map(|operand| seen.get(operand)).copied();
                let own = match &node.op {
                    Op::Constant(constant) => Seen::default().with(constant.value.value()),
                    _ => operands.fold(Seen::default(), Seen::and),
                };
                seen.insert(id, own);
            }
        }
        Ok(seen)
    }

    /// The way back from a value that is not finite.
    fn maker(&self, seen: &BTreeMap<ValueId, Seen>, from: ValueId) -> Maker {
        let mut id = from;
        let of = |id: &ValueId| seen.get(id).copied().unwrap_or_default();
        loop {
            let (node, own) = (&self.graph[id], of(&id));
            let (nan, infinite) = (
                node.operands.iter().find(|operand| of(operand).nan),
                node.operands.iter().find(|operand| of(operand).infinite),
            );
            match (own.nan, nan, infinite) {
                (true, Some(&operand), _) | (false, _, Some(&operand)) => id = operand,
                (nan, ..) => {
                    return match &node.op {
                        Op::Input(input) => Maker::Given { name: Some(input.name.clone()) },
                        Op::Constant(_) => Maker::Given { name: None },
                        op => Maker::Operation {
                            op: op.name(),
                            made: if nan { "NaN" } else { "an infinity" },
                            ty: node.ty.to_string(),
                            in_backward: self.is_backward(id),
                            largest: node.operands.iter().map(|o| of(o).largest).fold(0.0, f64::max),
                            infinity: infinite.map(|&operand| Box::new(self.maker(seen, operand))),
                            origin: Origin { lineage: None, ..node.origin.clone() },
                        },
                    };
                }
            }
        }
    }

    /// Whether a value comes after the first result, the loss.
    fn is_backward(&self, id: ValueId) -> bool {
        let loss = self.graph.outputs().iter().find(|output| !output.updates_state);
        loss.is_some_and(|loss| id > loss.value)
    }
}

/// What a tensor has.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    nan: bool,
    infinite: bool,
    /// The largest magnitude of a finite number.
    largest: f64,
}

impl Seen {
    fn of(tensor: &Tensor) -> Seen {
        match tensor.as_f32() {
            Some(values) => values.iter().fold(Seen::default(), |seen, &x| seen.with(f64::from(x))),
            None if tensor.ty().dtype.is_float() => {
                tensor.to_f64().into_iter().fold(Seen::default(), Seen::with)
            }
            None => Seen::default(),
        }
    }

    fn with(self, x: f64) -> Seen {
        match x.is_finite() {
            true => Seen { largest: self.largest.max(x.abs()), ..self },
            false => Seen { nan: self.nan | x.is_nan(), infinite: self.infinite | x.is_infinite(), ..self },
        }
    }

    fn and(self, other: Seen) -> Seen {
        Seen {
            nan: self.nan | other.nan,
            infinite: self.infinite | other.infinite,
            largest: self.largest.max(other.largest),
        }
    }

    fn has(self) -> Option<&'static str> {
        if self.nan { Some("NaN") } else { self.infinite.then_some("an infinity") }
    }
}
