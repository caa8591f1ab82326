//! The text of kernels, as the head of the kernel module shows it; it is read by people and does not parse back.
//!
//! Axes are called `o0 …` (outer), `r0 …` (rows), `c0 …` (columns) and `k0 …` (those that a product sums over or that a
//! consumer's result has).
//! A kernel alone calls buffers by number; [`KernelGraph`] knows their names.

use super::plan::Bytes;
use super::{
    Bound, BufferId, CollectiveCall, Contraction, Direction, Domain, Form, Index, Indirect, Instr, InstrKind,
    Kernel, KernelGraph, Loop, Operand, Region, Scalar, Store, StoreMode,
};
use crate::Op;
use std::fmt::{self, Display, Formatter};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Text { kernel: self, graph: None }.fmt(f)
    }
}

impl KernelGraph {
    /// The text of one of its kernels, with the names of buffers and the bytes moved.
    pub fn show<'a>(&'a self, kernel: &'a Kernel) -> impl Display + 'a {
        Text { kernel, graph: Some(self) }
    }
}

impl Display for KernelGraph {
    /// Buffers, kernels in execution order, outputs and updates. Refusals are left to `explain`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernels {:?}", self.name)?;
        for buffer in &self.buffers {
            let role = format!("{:?}", buffer.role).to_lowercase();
            write!(f, "{role} {} : {}", buffer.name, buffer.ty)?;
            match buffer.continues {
                Some(state) => writeln!(f, " continues {}", self.buffer(state).name)?,
                None => writeln!(f)?,
            }
        }
        for kernel in &self.kernels {
            write!(f, "\n{}", self.show(kernel))?;
        }
        if !self.outputs.is_empty() || !self.updates.is_empty() {
            f.write_str("\n")?;
        }
        for (name, buffer, ty) in &self.outputs {
            writeln!(f, "output {name:?} = {} : {ty}", self.buffer(*buffer).name)?;
        }
        for (state, value) in &self.updates {
            writeln!(f, "update {} = {}", self.buffer(*state).name, self.buffer(*value).name)?;
        }
        Ok(())
    }
}

/// A kernel, and the graph that knows the names of its buffers.
struct Text<'a> {
    kernel: &'a Kernel,
    graph: Option<&'a KernelGraph>,
}

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kernel = self.kernel;
        let form = kernel.form.name();
        match &kernel.form {
            Form::Loop(repeated) => write!(f, "{form} {}, {} iterations", kernel.name, repeated.iterations)?,
            Form::Collective(call) => write!(f, "{form} {} among {} ranks", kernel.name, call.op.ranks)?,
            Form::Map | Form::Reduce | Form::Contraction(_) => {
                write!(f, "{form} {} over {}", kernel.name, Groups(&kernel.domain))?
            }
        }
        if let Form::Contraction(Contraction { band: Some(band), .. }) = &kernel.form {
            let bound = |sign: &str, bound: Option<i64>| {
                bound.map(|by| {
                    format!(
                        ", column {sign} row{}",
                        match by {
                            0 => String::new(),
                            by => format!(" {} {}", if by < 0 { '-' } else { '+' }, by.abs()),
                        }
                    )
                })
            };
            let [lower, upper] = [bound("≥", band.lower), bound("≤", band.upper)];
            write!(f, "{}{}", lower.unwrap_or_default(), upper.unwrap_or_default())?;
        }
        writeln!(f)?;
        if !kernel.covers.is_empty() {
            let covers: Vec<_> = kernel.covers.iter().map(|id| format!("%{}", id.index())).collect();
            writeln!(f, "  # covers {}", covers.join(" "))?;
        }
        let moved = self.graph.map(|graph| format!("{} moved, ", Bytes(graph.bytes_moved(kernel))));
        writeln!(f, "  # {}{} operations", moved.unwrap_or_default(), kernel.operations())?;
        if let Some(repeated) = kernel.repeated() {
            return self.repeated(f, repeated);
        }
        if let Some(call) = kernel.collective() {
            return self.collective(f, kernel, call);
        }
        for (number, product) in kernel.products().iter().enumerate() {
            writeln!(f, "  product {number} over k {:?} : {}", product.k, product.dtype)?;
            self.operand(f, "a", &product.a)?;
            self.operand(f, "b", &product.b)?;
        }
        self.region(f, &kernel.region, "  ")?;
        for consumer in kernel.consumers() {
            let along = direction(consumer.along);
            let (value, to) = (Name(consumer.value), self.buffer(consumer.buffer));
            let index = self.affine(&consumer.index);
            writeln!(
                f,
                "  contract.{along} {value} over p {:?} → {to}[{index}] : {}",
                consumer.p, consumer.dtype
            )?;
            self.operand(f, "with", &consumer.with)?;
        }
        kernel.stores.iter().try_for_each(|store| self.store(f, store))
    }
}

impl Text<'_> {
    /// What is given and got, and the bytes that a rank sends.
    fn collective(&self, f: &mut Formatter<'_>, kernel: &Kernel, call: &CollectiveCall) -> fmt::Result {
        let exchange = call.op.exchange.name();
        let sent = self.graph.map(|graph| graph.bytes_sent(kernel));
        let sent = sent.map(|bytes| format!(", {} sent", Bytes(bytes)));
        let [from, to] = [call.from, call.to].map(|buffer| self.buffer(buffer));
        let rounded = if call.op.in_bf16 { " as bf16" } else { "" };
        writeln!(f, "  {exchange} {from} → {to}{rounded}{}", sent.unwrap_or_default())
    }

    /// What lies where, then the kernels of the body.
    fn repeated(&self, f: &mut Formatter<'_>, repeated: &Loop) -> fmt::Result {
        let body = repeated.graph();
        let inner = |id: BufferId| &body.buffer(id).name;
        let iteration = if repeated.reverse { "[last − iteration]" } else { "[iteration]" };
        for (carried, (_, next, _)) in repeated.carried.iter().zip(&body.outputs) {
            let first = self.buffer(carried.first);
            writeln!(f, "  {} = {first}, then {}", inner(carried.inner), inner(*next))?;
            if let Some(last) = carried.last {
                writeln!(f, "  {} = {} in the end", self.buffer(last), inner(*next))?;
            }
        }
        for window in &repeated.slices {
            writeln!(f, "  {} = {}{iteration}", inner(window.inner), self.buffer(window.outer))?;
        }
        for window in &repeated.constants {
            writeln!(f, "  {} = {}", inner(window.inner), self.buffer(window.outer))?;
        }
        for (result, (_, value, _)) in repeated.results.iter().zip(&body.outputs[repeated.carried.len()..]) {
            writeln!(f, "  {}{iteration} = {}", self.buffer(*result), inner(*value))?;
        }
        for kernel in &body.kernels {
            let text = body.show(kernel).to_string();
            text.lines().try_for_each(|line| writeln!(f, "    {line}"))?;
        }
        Ok(())
    }

    fn operand(&self, f: &mut Formatter<'_>, side: &str, operand: &Operand) -> fmt::Result {
        writeln!(f, "    {side} = {} of", Name(operand.value))?;
        self.region(f, &operand.region, "      ")
    }

    fn region(&self, f: &mut Formatter<'_>, region: &Region, indent: &str) -> fmt::Result {
        for (number, instr) in region.instrs.iter().enumerate() {
            write!(f, "{indent}%{number} = ")?;
            self.instr(f, instr)?;
            writeln!(f, " : {}", instr.dtype)?;
        }
        Ok(())
    }

    fn instr(&self, f: &mut Formatter<'_>, instr: &Instr) -> fmt::Result {
        match &instr.kind {
            InstrKind::Constant(value) => write!(f, "constant {}", value.value()),
            InstrKind::Coordinate(index) => write!(f, "coordinate {}", self.affine(index)),
            InstrKind::Load { buffer, index, guard } => {
                write!(f, "load {}[{}]", self.buffer(*buffer), self.affine(index))?;
                let condition = if guard.is_empty() { "" } else { " if " };
                write!(f, "{condition}{}", self.bounds(guard))
            }
            InstrKind::Random { seed, step, node, element } => {
                let element = self.affine(element);
                write!(f, "random {} {} node {node} [{element}]", Name(*seed), Name(*step))
            }
            InstrKind::InRange(bounds) => write!(f, "in_range {}", self.bounds(bounds)),
            kind @ (InstrKind::Producer(_)
            | InstrKind::Unary(..)
            | InstrKind::Binary(..)
            | InstrKind::Compare(..)
            | InstrKind::Select(..)
            | InstrKind::Cast(_)
            | InstrKind::Reduce(..)) => {
                f.write_str(&kind.name())?;
                kind.operands().into_iter().try_for_each(|operand| write!(f, " {}", Name(operand)))
            }
        }
    }

    fn store(&self, f: &mut Formatter<'_>, store: &Store) -> fmt::Result {
        let verb = match store.mode {
            StoreMode::Set => "store",
            StoreMode::Add => "add",
        };
        let (buffer, index) = (self.buffer(store.buffer), self.affine(&store.index));
        writeln!(f, "  {verb} {} → {buffer}[{index}]", Name(store.value))
    }

    fn buffer(&self, id: BufferId) -> String {
        let known = self.graph.and_then(|graph| graph.buffers.get(id.0 as usize));
        known.map_or_else(|| format!("b{}", id.0), |buffer| buffer.name.clone())
    }

    fn affine<'a>(&'a self, index: &'a Index) -> Affine<'a> {
        Affine { domain: &self.kernel.domain, index }
    }

    fn bounds(&self, bounds: &[Bound]) -> String {
        let bound = |bound: &Bound| format!("0 ≤ {} < {}", self.affine(&bound.coordinate), bound.extent);
        bounds.iter().map(bound).collect::<Vec<_>>().join(" and ")
    }
}

impl InstrKind {
    /// What its text begins with.
    pub fn name(&self) -> String {
        match self {
            InstrKind::Constant(_) => "constant".into(),
            InstrKind::Coordinate(_) => "coordinate".into(),
            InstrKind::Load { .. } => "load".into(),
            InstrKind::Random { .. } => "random".into(),
            InstrKind::Producer(number) => format!("product {number}"),
            InstrKind::Unary(op, _) => Op::from(*op).name().into(),
            InstrKind::Binary(op, ..) => Op::from(*op).name().into(),
            InstrKind::Compare(op, ..) => Op::from(*op).name().into(),
            InstrKind::Select(..) => "select".into(),
            InstrKind::Cast(_) => "cast".into(),
            InstrKind::InRange(_) => "in_range".into(),
            InstrKind::Reduce(op, along, _) => format!("reduce.{} {}", direction(*along), op.name()),
        }
    }
}

struct Name(Scalar);

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0.0)
    }
}

/// The axes of a domain by group; empty groups are left out.
struct Groups<'a>(&'a Domain);

impl Display for Groups<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Groups(domain) = self;
        let groups =
            [("outer", domain.outer_axes()), ("rows", domain.row_axes()), ("columns", domain.column_axes())];
        let shown = groups.into_iter().filter(|(_, axes)| !axes.is_empty());
        let shown: Vec<_> = shown.map(|(name, axes)| format!("{name} {:?}", &domain.axes[axes])).collect();
        f.write_str(if shown.is_empty() { "one point" } else { "" })?;
        f.write_str(&shown.join(" "))
    }
}

/// An index map as a sum of terms: strided ones, indirect ones, the constant.
struct Affine<'a> {
    domain: &'a Domain,
    index: &'a Index,
}

impl Display for Affine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let strided = self.index.strides.iter().enumerate().map(|(axis, stride)| (*stride, self.axis(axis)));
        let clamped = |term: &Indirect| (term.stride, format!("clamp({}, {})", Name(term.value), term.limit));
        let terms = strided.chain(self.index.indirect.iter().map(clamped));
        let mut empty = true;
        for (factor, term) in terms.filter(|(factor, _)| *factor != 0) {
            sign(f, factor, empty)?;
            match factor.unsigned_abs() {
                1 => f.write_str(&term)?,
                factor => write!(f, "{factor}·{term}")?,
            }
            empty = false;
        }
        if empty || self.index.offset != 0 {
            sign(f, self.index.offset, empty)?;
            write!(f, "{}", self.index.offset.unsigned_abs())?;
        }
        Ok(())
    }
}

impl Affine<'_> {
    fn axis(&self, axis: usize) -> String {
        let Domain { axes, outer, rows } = self.domain;
        let (name, first) = match axis {
            axis if axis < *outer => ("o", 0),
            axis if axis < outer + rows => ("r", *outer),
            axis if axis < axes.len() => ("c", outer + rows),
            _ => ("k", axes.len()),
        };
        format!("{name}{}", axis - first)
    }
}

/// The sign before a term of a sum.
fn sign(f: &mut Formatter<'_>, factor: i64, first: bool) -> fmt::Result {
    f.write_str(match (factor < 0, first) {
        (true, true) => "−",
        (true, false) => " − ",
        (false, true) => "",
        (false, false) => " + ",
    })
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Columns => "columns",
        Direction::Rows => "rows",
    }
}
