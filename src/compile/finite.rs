//! Which operation made the first NaN or infinity of a run.
//!
//! With [`Target::check_finite`] every run is looked at when it is over: its results and the new values of its states. If one is
//! not finite, the same run is repeated from the states as they were, eagerly, one kernel for each traced operation, and
//! what each of them gives is looked at, too. From the result that is not finite the way leads back, along operands that are
//! not finite either, to the operation that made it of others: that is what [`NonFinite`] names, with the user's line.
//!
//! That is done on the CPU, also for programs of a GPU. Without it nothing is done. With it, states are copied before every run.

use super::{Mode, Target, lower};
use crate::error::{Error, Maker, NonFinite, Result};
use kernfusion_codegen::{Outputs, States, Temporaries};
use kernfusion_ir::{Graph, Input, InputRole, Op, Origin, Tensor, ValueId};
use kernfusion_passes::MemoryStrategy;
use std::collections::BTreeMap;

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
                false => Some(Seen::of(outputs.get(&output.name)?)),
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
        let program = lower(&self.graph, &self.target, MemoryStrategy::NONE)?.program;
        let mut executable = self.target.backend().compile(program, &states, Temporaries::Fresh)?;
        let mut seen = BTreeMap::new();
        for (id, name, _) in self.graph.inputs() {
            let given = inputs.iter().find(|(other, _)| *other == name).map(|(_, tensor)| *tensor);
            let kept = saved.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor);
            seen.extend(given.or(kept).map(|tensor| (id, Seen::of(tensor))));
        }
        let graph = executable.program().body.graph.clone();
        executable.run_seen(inputs, &mut |moment| {
            for buffer in graph.kernels[moment.kernel].writes() {
                let Some(node) = graph.values.get(&buffer).and_then(|value| graph.nodes.get(value)) else {
                    continue;
                };
                let here = Seen::of(&(moment.look)(buffer)?);
                let sources = node.origin.sources().iter().filter(|source| node.origin.stands_for(**source));
                seen.extend(sources.map(|&source| (source, here)));
            }
            Ok(())
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
                        Op::Input(input) => given(input, if nan { "NaN" } else { "an infinity" }),
                        Op::Constant(_) => Maker::Constant,
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

/// An input or a state that has or had it.
fn given(Input { name, role, .. }: &Input, has: &'static str) -> Maker {
    let name = name.clone();
    match role {
        InputRole::Data => Maker::Input { name, has },
        InputRole::State => Maker::State { name, had: has },
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
