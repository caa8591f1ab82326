//! Shorthand for appending ops, used by stanzas, passes and the library.

use crate::{
    Binary, Broadcast, Cast, Compare, Constant, DType, DotGeneral, Graph, Input, InputRole, IrError, Literal,
    Op, Origin, Pad, Permute, Reduce, ReduceOp, Reshape, Result, Select, Slice, TensorType, Unary, ValueId,
};

/// Appends nodes of one origin to a graph.
pub struct Builder<'g> {
    graph: &'g mut Graph,
    origin: Origin,
}

impl<'g> Builder<'g> {
    /// A builder whose nodes get `origin`.
    pub fn new(graph: &'g mut Graph, origin: Origin) -> Self {
        Builder { graph, origin }
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        self.graph
    }

    /// The origin of the nodes.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.graph[value].ty
    }

    /// Appends an op.
    ///
    /// # Errors
    /// If the op does not accept the operands. All methods below share this.
    pub fn op(&mut self, op: impl Into<Op>, operands: &[ValueId]) -> Result<ValueId> {
        self.graph.add(op, operands, self.origin.clone())
    }

    /// A named input.
    #[allow(missing_docs, reason = "the family shares one description of errors, above")]
    pub fn input(&mut self, name: &str, role: InputRole, ty: TensorType) -> Result<ValueId> {
        if self.graph.input(name).is_some() {
            return Err(IrError::Input { name: name.into(), reason: "is declared twice".into() });
        }
        self.op(Input { name: name.into(), role, ty }, &[])
    }

    /// A scalar.
    pub fn constant(&mut self, value: f64, dtype: DType) -> Result<ValueId> {
        self.op(Constant { value: Literal::new(dtype.round(value)), dtype }, &[])
    }

    /// A tensor of one number.
    pub fn full(&mut self, value: f64, ty: &TensorType) -> Result<ValueId> {
        let scalar = self.constant(value, ty.dtype)?;
        self.broadcast(scalar, &ty.shape, &[])
    }

    /// A tensor of one number, typed like another.
    pub fn full_like(&mut self, value: f64, like: ValueId) -> Result<ValueId> {
        let ty = self.ty(like).clone();
        self.full(value, &ty)
    }

    /// A tensor of zeros, typed like another.
    pub fn zeros_like(&mut self, like: ValueId) -> Result<ValueId> {
        self.full_like(0.0, like)
    }

    /// An elementwise op.
    pub fn unary(&mut self, op: Unary, x: ValueId) -> Result<ValueId> {
        self.op(op, &[x])
    }

    /// An elementwise op of two operands of one type.
    pub fn binary(&mut self, op: Binary, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.op(op, &[x, y])
    }

    /// x + y.
    pub fn add(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Add, x, y)
    }

    /// x − y.
    pub fn sub(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Sub, x, y)
    }

    /// x · y, elementwise.
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Mul, x, y)
    }

    /// x / y.
    pub fn div(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.binary(Binary::Div, x, y)
    }

    /// factor · x.
    pub fn scale(&mut self, x: ValueId, factor: f64) -> Result<ValueId> {
        let factor = self.full_like(factor, x)?;
        self.mul(x, factor)
    }

    /// 1 − x.
    pub fn one_minus(&mut self, x: ValueId) -> Result<ValueId> {
        let one = self.full_like(1.0, x)?;
        self.sub(one, x)
    }

    /// A comparison.
    pub fn compare(&mut self, op: Compare, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.op(op, &[x, y])
    }

    /// `condition ? a : b`.
    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.op(Select, &[condition, a, b])
    }

    /// A conversion; nothing if the dtype is the same.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Result<ValueId> {
        if self.ty(x).dtype == dtype { Ok(x) } else { self.op(Cast { dtype }, &[x]) }
    }

    /// A reduction over axes, which vanish; nothing if there are none.
    pub fn reduce(&mut self, op: ReduceOp, axes: &[usize], x: ValueId) -> Result<ValueId> {
        if axes.is_empty() { Ok(x) } else { self.op(Reduce { op, axes: axes.to_vec() }, &[x]) }
    }

    /// The same elements under another shape; nothing if it is the same.
    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        if self.ty(x).shape == shape { Ok(x) } else { self.op(Reshape { shape: shape.to_vec() }, &[x]) }
    }

    /// Axis `i` of the result is axis `axes[i]` of x; nothing if that changes nothing.
    pub fn permute(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId> {
        let identity = axes.len() == self.ty(x).rank() && axes.iter().copied().eq(0..axes.len());
        if identity { Ok(x) } else { self.op(Permute { axes: axes.to_vec() }, &[x]) }
    }

    /// Repeats x along new axes: its axis `i` is axis `axes[i]` of `shape`; nothing if there are none.
    pub fn broadcast(&mut self, x: ValueId, shape: &[usize], axes: &[usize]) -> Result<ValueId> {
        if self.ty(x).shape == shape && axes.iter().copied().eq(0..shape.len()) {
            return Ok(x);
        }
        self.op(Broadcast { shape: shape.to_vec(), axes: axes.to_vec() }, &[x])
    }

    /// NumPy's broadcasting: aligns trailing axes and stretches those of extent 1.
    pub fn broadcast_to(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId> {
        let own = self.ty(x).shape.clone();
        let Some(lead) = shape.len().checked_sub(own.len()) else {
            return self.broadcast(x, shape, &(0..own.len()).collect::<Vec<_>>());
        };
        let stays = |axis: &usize| own[*axis] != 1 || shape[lead + axis] == 1;
        let kept: Vec<_> = (0..own.len()).filter(stays).collect();
        let squeezed = self.reshape(x, &kept.iter().map(|&axis| own[axis]).collect::<Vec<_>>())?;
        self.broadcast(squeezed, shape, &kept.iter().map(|axis| lead + axis).collect::<Vec<_>>())
    }

    /// The part from `start` to `end` along each axis.
    pub fn slice(&mut self, x: ValueId, start: &[usize], end: &[usize]) -> Result<ValueId> {
        self.op(Slice { start: start.to_vec(), end: end.to_vec() }, &[x])
    }

    /// Surrounds x with `value`.
    pub fn pad(&mut self, x: ValueId, low: &[usize], high: &[usize], value: f64) -> Result<ValueId> {
        self.op(Pad { low: low.to_vec(), high: high.to_vec(), value: Literal::new(value) }, &[x])
    }

    /// `x · y` with x `[batch.., m, k]` and y `[batch.., k, n]`, as `[batch.., m, n]`.
    pub fn matmul(&mut self, x: ValueId, y: ValueId) -> Result<ValueId> {
        let (left, right) = (self.ty(x).rank(), self.ty(y).rank());
        let batch: Vec<_> = (0..right.saturating_sub(2)).collect();
        let dtype = self.ty(x).dtype;
        let dot = DotGeneral {
            lhs_batch: batch.clone(),
            rhs_batch: batch,
            lhs_contract: vec![left.saturating_sub(1)],
            rhs_contract: vec![right.saturating_sub(2)],
            dtype,
        };
        self.op(dot, &[x, y])
    }
}

/// The shape that NumPy's broadcasting gives two operands, if they agree.
pub fn broadcast_shape(x: &[usize], y: &[usize]) -> Option<Vec<usize>> {
    let rank = x.len().max(y.len());
    let extent =
        |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
    let join = |axis| match (extent(x, axis), extent(y, axis)) {
        (a, b) if a == b => Some(a),
        (1, b) => Some(b),
        (a, 1) => Some(a),
        _ => None,
    };
    (0..rank).map(join).collect()
}
