//! What rules look at and build with.

use super::language::{Head, Term, Terms};
use crate::fold;
use egg::Id;
use kernfusion_ir::{
    Binary, Broadcast, Cast, Concat, Constant, DType, DotGeneral, Iota, KernelEntry, Literal, Op, Pad,
    Permute, Reduce, ReduceOp, Reshape, Slice, TensorType, Unary, Windows,
};

/// The e-graph as rules see it. Everything is built under the op's type rule; what does not fit is `None`, and the
/// shorthands leave out ops that change nothing.
pub(super) struct Rewriter<'a> {
    terms: &'a mut Terms,
    most_nodes: usize,
    /// What was not in the e-graph before.
    made: Vec<Term>,
}

impl<'a> Rewriter<'a> {
    /// Rewrites an e-graph that is to have at most about `most_nodes` nodes.
    pub(super) fn new(terms: &'a mut Terms, most_nodes: usize) -> Self {
        Rewriter { terms, most_nodes, made: vec![] }
    }

    /// The terms that were not in the e-graph before.
    pub(super) fn into_made(self) -> Vec<Term> {
        self.made
    }

    /// Whether the e-graph is as large as it may be.
    pub(super) fn is_full(&self) -> bool {
        self.terms.total_size() > self.most_nodes
    }

    /// The type of a value.
    pub(super) fn ty(&self, id: Id) -> &TensorType {
        &self.terms[id].data.ty
    }

    /// The extents of a value.
    pub(super) fn shape(&self, id: Id) -> Vec<usize> {
        self.ty(id).shape.clone()
    }

    /// The number that all elements of a value are.
    pub(super) fn constant(&self, id: Id) -> Option<f64> {
        self.terms[id].data.constant.map(Literal::value)
    }

    /// What no magnitude of a value is larger than, if all its elements are whole.
    pub(super) fn largest_whole(&self, id: Id) -> Option<f64> {
        self.terms[id].data.whole.map(Literal::value)
    }

    /// Whether a value is made of parameters by moving and casting alone.
    pub(super) fn is_weight(&self, id: Id) -> bool {
        self.terms[id].data.weight
    }

    /// Whether two values are known to be equal.
    pub(super) fn same(&self, x: Id, y: Id) -> bool {
        self.terms.find(x) == self.terms.find(y)
    }

    /// The representative of a value's class.
    pub(super) fn find(&self, x: Id) -> Id {
        self.terms.find(x)
    }

    /// The terms of a value.
    fn terms(&self, id: Id) -> impl Iterator<Item = &Term> {
        let class = &self.terms[id];
        class.data.forms(&class.nodes)
    }

    /// The forms of a value that are ops of this name.
    pub(super) fn named(&self, id: Id, name: &str) -> impl Iterator<Item = &Term> {
        self.terms(id).filter(move |term| term.name() == name)
    }

    /// As `named`, to keep while the e-graph changes.
    pub(super) fn forms(&self, id: Id, name: &str) -> Vec<Term> {
        self.named(id, name).cloned().collect()
    }

    /// The first form of a value that is an op of this name.
    pub(super) fn form(&self, id: Id, name: &str) -> Option<Term> {
        self.terms(id).find(|term| term.name() == name).cloned()
    }

    /// All values with a form of this name, with that form, in a fixed order.
    pub(super) fn all(&self, name: &'static str) -> Vec<(Id, Term)> {
        let mut found = Vec::new();
        for class in self.terms.classes_for_op(&name).into_iter().flatten() {
            let terms = self.terms(class).filter(|term| term.name() == name);
            found.extend(terms.map(|term| (class, term.clone())));
        }
        found.sort();
        found
    }

    /// The first form of a value that is an elementwise op.
    pub(super) fn elementwise(&self, id: Id) -> Option<(Op, Vec<Id>)> {
        let scalar = |term: &Term| match &term.head {
            Head::Op(op) if op.entry() == KernelEntry::Scalar => Some((op.clone(), term.operands.clone())),
            _ => None,
        };
        self.terms(id).find_map(scalar)
    }

    /// The value that this op has been found to be, if it stands in the e-graph.
    pub(super) fn lookup(&self, op: impl Into<Op>, operands: &[Id]) -> Option<Id> {
        let term = Term::op(op, operands);
        let mirrored = if term.commutes() { self.terms.lookup(term.mirrored()) } else { None };
        mirrored.or_else(|| self.terms.lookup(term))
    }

    /// An op. No number is made that leaves the range of its dtype, which the program that is rewritten may stay in.
    pub(super) fn add(&mut self, op: impl Into<Op>, operands: &[Id]) -> Option<Id> {
        let op = op.into();
        let types: Vec<_> = operands.iter().map(|&operand| self.ty(operand)).collect();
        op.infer(&types).ok()?;
        if self.leaves_range(&op, operands) {
            return None;
        }
        // There is no rule for commutativity, so the other order stands for this one.
        let term = Term::op(op, operands);
        let known = if term.commutes() { self.terms.lookup(term.mirrored()) } else { None };
        Some(known.unwrap_or_else(|| self.insert(term)))
    }

    /// Whether arithmetic on numbers gives an infinity, or so small a number that digits are lost.
    fn leaves_range(&self, op: &Op, operands: &[Id]) -> bool {
        let dtype = operands.first().map_or(DType::Bool, |&operand| self.ty(operand).dtype);
        let numbers: Option<Vec<_>> = operands.iter().map(|&operand| self.constant(operand)).collect();
        let (Op::Binary(binary), Some(numbers), true) = (op, numbers, dtype.is_float()) else { return false };
        let result =
            fold::apply(op, &numbers.iter().map(|&number| (dtype, number)).collect::<Vec<_>>(), dtype);
        let scales = matches!(binary, Binary::Mul | Binary::Div) && numbers[0] != 0.0;
        let is_lost = scales && result.abs() < dtype.smallest_normal();
        numbers.iter().all(|number| number.is_finite()) && (!result.is_finite() || is_lost)
    }

    fn insert(&mut self, term: Term) -> Id {
        let before = self.terms.total_size();
        let id = self.terms.add(term.clone());
        if self.terms.total_size() > before {
            self.made.push(term);
        }
        id
    }

    /// A tensor of one number, if the dtype has it.
    pub(super) fn full(&mut self, value: f64, ty: &TensorType) -> Option<Id> {
        let constant = Constant { value: Literal::new(value), dtype: ty.dtype };
        let scalar = self.add(constant, &[])?;
        self.broadcast(scalar, &ty.shape, &[])
    }

    pub(super) fn unary(&mut self, op: Unary, x: Id) -> Option<Id> {
        self.add(op, &[x])
    }

    pub(super) fn binary(&mut self, op: Binary, x: Id, y: Id) -> Option<Id> {
        self.add(op, &[x, y])
    }

    pub(super) fn cast(&mut self, x: Id, dtype: DType) -> Option<Id> {
        if self.ty(x).dtype == dtype { Some(x) } else { self.add(Cast { dtype }, &[x]) }
    }

    pub(super) fn reshape(&mut self, x: Id, shape: &[usize]) -> Option<Id> {
        if self.ty(x).shape == shape { Some(x) } else { self.add(Reshape { shape: shape.to_vec() }, &[x]) }
    }

    pub(super) fn permute(&mut self, x: Id, axes: &[usize]) -> Option<Id> {
        let identity = axes.len() == self.ty(x).rank() && axes.iter().copied().eq(0..axes.len());
        if identity { Some(x) } else { self.add(Permute { axes: axes.to_vec() }, &[x]) }
    }

    pub(super) fn broadcast(&mut self, x: Id, shape: &[usize], axes: &[usize]) -> Option<Id> {
        let identity = self.ty(x).shape == shape && axes.iter().copied().eq(0..shape.len());
        if identity {
            Some(x)
        } else {
            self.add(Broadcast { shape: shape.to_vec(), axes: axes.to_vec() }, &[x])
        }
    }

    pub(super) fn slice(&mut self, x: Id, start: &[usize], end: &[usize]) -> Option<Id> {
        let all = start.iter().all(|&start| start == 0) && self.ty(x).shape == end;
        if all { Some(x) } else { self.add(Slice { start: start.to_vec(), end: end.to_vec() }, &[x]) }
    }

    pub(super) fn pad(&mut self, x: Id, low: &[usize], high: &[usize], value: Literal) -> Option<Id> {
        let nothing = low.iter().chain(high).all(|&extent| extent == 0);
        if nothing { Some(x) } else { self.add(Pad { low: low.to_vec(), high: high.to_vec(), value }, &[x]) }
    }

    pub(super) fn concat(&mut self, axis: usize, parts: &[Id]) -> Option<Id> {
        if let [only] = parts { Some(*only) } else { self.add(Concat { axis }, parts) }
    }

    pub(super) fn reduce(&mut self, op: ReduceOp, axes: &[usize], x: Id) -> Option<Id> {
        if axes.is_empty() { Some(x) } else { self.add(Reduce { op, axes: axes.to_vec() }, &[x]) }
    }

    /// A product of two values, and the same with its axes in another order: axis i of the result is axis `order[i]` of the
    /// product.
    pub(super) fn dot(&mut self, dot: DotGeneral, x: Id, y: Id, order: &[usize]) -> Option<Id> {
        let product = self.add(dot, &[x, y])?;
        self.permute(product, order)
    }

    /// A value that does not change along some axes, without them: a number, or a broadcast along them.
    pub(super) fn without_axes(&mut self, x: Id, axes: &[usize]) -> Option<Id> {
        let shape = self.shape(x);
        let kept: Vec<_> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let rest: Vec<_> = kept.iter().map(|&axis| shape[axis]).collect();
        if self.constant(x).is_some() {
            return self.constant_as(x, &rest);
        }
        let (spread, of) = self
            .broadcasts(x)
            .into_iter()
            .find(|(spread, _)| axes.iter().all(|axis| !spread.axes.contains(axis)))?;
        let place = |axis: &usize| kept.iter().position(|kept| kept == axis).expect("the axis stays");
        let places: Vec<_> = spread.axes.iter().map(place).collect();
        self.broadcast(of[0], &rest, &places)
    }

    /// A tensor of one number `constant` as the same number in another shape.
    pub(super) fn constant_as(&mut self, x: Id, shape: &[usize]) -> Option<Id> {
        let (value, ty) = (self.constant(x)?, self.ty(x).with_shape(shape));
        self.full(value, &ty)
    }

    /// Says that two values are equal; whether that is news.
    pub(super) fn union(&mut self, x: Id, y: Id) -> bool {
        self.terms.union(x, y)
    }
}

macro_rules! views_of_terms {
    ($($(#[$doc:meta])* $name:ident: $op:ident,)*) => {
        impl Rewriter<'_> {
            $($(#[$doc])* pub(super) fn $name(&self, id: Id) -> Vec<($op, Vec<Id>)> {
                let view = |term: &Term| match &term.head {
                    Head::Op(Op::$op(op)) => Some((op.clone(), term.operands.clone())),
                    _ => None,
                };
                self.terms(id).filter_map(view).collect()
            })*
        }
    };
}

views_of_terms! {
    /// The forms of a value as a permutation.
    permutes: Permute,
    /// The forms of a value as a reshape.
    reshapes: Reshape,
    /// The forms of a value as a broadcast.
    broadcasts: Broadcast,
    /// The forms of a value as a slice.
    slices: Slice,
    /// The forms of a value as what windows see.
    windows: Windows,
    /// The forms of a value as a padding.
    pads: Pad,
    /// The forms of a value as a concatenation.
    concats: Concat,
    /// The forms of a value as a reduction.
    reduces: Reduce,
    /// The forms of a value as a product.
    dots: DotGeneral,
    /// The forms of a value as a conversion.
    casts: Cast,
    /// The forms of a value as coordinates.
    iotas: Iota,
}

/// `axes[i]` ↦ i.
pub(super) fn inverse(axes: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; axes.len()];
    axes.iter().enumerate().for_each(|(i, &axis)| inverse[axis] = i);
    inverse
}
