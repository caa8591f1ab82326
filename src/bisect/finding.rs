//! What was found, in words.

use super::deviation::Deviation;
use kernfusion_ir::kernel::{Kernel, KernelGraph};
use kernfusion_ir::{Graph, Node, Origin, ValueId};
use std::fmt;

/// The step at fault, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// The step.
    pub culprit: Culprit,
    /// The first value that is wrong, if there is one to compare it with.
    pub place: Option<Place>,
    /// The result, or what a kernel writes, that is farthest from what it should be.
    pub worst: Deviation,
}

/// A step at fault.
#[derive(Debug, Clone, PartialEq)]
pub enum Culprit {
    /// A pass.
    Pass {
        /// Its name.
        name: &'static str,
        /// Its place in the list, from 1.
        number: usize,
    },
    /// A rule of the simplifier.
    Rule {
        /// Its name.
        name: &'static str,
        /// What it says.
        formula: String,
    },
    /// The simplifier, without any rule.
    Extraction,
    /// A kernel that fusion has made of right nodes: interpreted, it writes something else.
    Fusion {
        /// The kernel's name.
        kernel: String,
    },
    /// The code of a kernel whose interpretation is right.
    Code {
        /// The kernel's name.
        kernel: String,
        /// How far rounding every instruction alone brings it.
        rounding: f64,
    },
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// The ops that compute it, in order.
    pub ops: Vec<&'static str>,
    /// What it was before the pass, if that is another op.
    pub was: Option<&'static str>,
    /// The type.
    pub ty: String,
    /// How far it is from what it should be.
    pub deviation: f64,
    /// The user's line, and the module.
    pub origin: Origin,
    /// Lines and modules of all ops of a kernel, each once.
    pub others: Vec<Origin>,
}

impl Place {
    /// A node that stands for another one of the graph before it.
    pub(super) fn of_node(before: &Graph, source: ValueId, node: &Node, deviation: f64) -> Self {
        let (was, op) = (before[source].op.name(), node.op.name());
        Place {
            ops: vec![op],
            was: (was != op).then_some(was),
            ty: node.ty.to_string(),
            deviation,
            origin: plain(&before[source].origin),
            others: vec![],
        }
    }

    /// A value that a kernel writes.
    pub(super) fn of_kernel(graph: &KernelGraph, kernel: &Kernel, ty: String, deviation: f64) -> Self {
        let nodes = || kernel.covers.iter().filter_map(|id| graph.nodes.get(id));
        let mut origins: Vec<Origin> = Vec::new();
        for origin in nodes().map(|node| plain(&node.origin)) {
            if !origins.contains(&origin) {
                origins.push(origin);
            }
        }
        let last = origins.pop().unwrap_or_default();
        Place {
            ops: nodes().map(|node| node.op).collect(),
            was: None,
            ty,
            deviation,
            origin: last,
            others: origins,
        }
    }
}

fn plain(origin: &Origin) -> Origin {
    Origin { lineage: None, ..origin.clone() }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Deviation { size, of } = &self.worst;
        match &self.culprit {
            Culprit::Pass { name, number } => {
                write!(f, "pass {number}, {name}, changes the result {of} by {size:.2e}")?;
            }
            Culprit::Rule { name, formula } => {
                write!(f, "rule {name} of the simplifier ({formula}) changes the result {of} by {size:.2e}")?;
            }
            Culprit::Extraction => {
                write!(f, "the simplifier changes the result {of} by {size:.2e} without any rule")?;
            }
            Culprit::Fusion { kernel } => {
                write!(
                    f,
                    "fusion made a kernel, {kernel}, that computes {of} with a deviation of {size:.2e}"
                )?;
            }
            Culprit::Code { kernel, rounding } => {
                write!(
                    f,
                    "the code of kernel {kernel} writes {of} with a deviation of {size:.2e}, where rounding explains {rounding:.2e}"
                )?;
            }
        }
        self.place.iter().try_for_each(|place| write!(f, "\n{place}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let was = self.was.map_or(String::new(), |was| format!(", which was {was},"));
        write!(f, "the first wrong value: {}{was} of type {}", self.ops.join(" → "), self.ty)?;
        write!(f, ", {:.2e} of its largest magnitude off{}", self.deviation, self.origin)?;
        self.others.iter().try_for_each(|other| write!(f, "{other}"))
    }
}
