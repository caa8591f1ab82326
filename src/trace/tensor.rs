//! The handle of a traced value: its type, and gradients.

use super::{Inner, Trace};
use kernfusion_ir::{DType, Input, InputRole, Op, Reshape, TensorType, ValueId};
use std::fmt;
use std::rc::Rc;

/// A value of a [`Trace`]. Cheap to clone; operators work on handles and on references to them.
#[derive(Clone)]
pub struct Tensor {
    trace: Trace,
    /// The number of the frame whose graph has it.
    frame: u32,
    id: ValueId,
    ty: Rc<TensorType>,
}

/// What to do with a tensor where a scalar is wanted.
pub(crate) const MAKES_SCALARS: &str = "`.mean_all()` and `.sum_all()` make a scalar of a tensor";

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}: {}", self.id.index(), self.ty())
    }
}

impl Tensor {
    pub(super) fn new(trace: Trace, frame: u32, id: ValueId, ty: TensorType) -> Self {
        Tensor { trace, frame, id, ty: Rc::new(ty) }
    }

    pub(super) fn frame(&self) -> u32 {
        self.frame
    }

    /// The program that this is a value of.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The value's place in the graph.
    pub fn id(&self) -> ValueId {
        self.id
    }

    /// The type.
    pub fn ty(&self) -> TensorType {
        (*self.ty).clone()
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> Vec<usize> {
        self.ty.shape.clone()
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.ty.rank()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The extent of an axis, counted from the end if negative. An axis that does not exist is a mistake (and its
    /// extent 1).
    #[track_caller]
    pub fn dim(&self, axis: isize) -> usize {
        self.axis("dim", axis).map_or(1, |axis| self.shape()[axis])
    }

    /// The gradients of this scalar by each of `wrt`, of their types. They are ordinary values, and have gradients
    /// themselves.
    #[track_caller]
    pub fn grad(&self, wrt: &[&Tensor]) -> Vec<Tensor> {
        let operands: Vec<_> = [&[self], wrt].concat();
        let ty = self.ty();
        let scalar = ty.rank() == 0 && ty.dtype.is_float();
        let in_loop = self.trace.depth() > 0;
        let checked = self.trace.attempt_all("grad", &operands, |_, ids| match scalar {
            true if in_loop => Err("gradients are taken after a loop, not in its body".into()),
            true => Ok(ids[0]),
            false => Err(format!("only a floating-point scalar has gradients, and {MAKES_SCALARS}").into()),
        });
        let gradients = checked.map(|_| {
            let Inner { frames, stopped, .. } = &mut *self.trace.inner.borrow_mut();
            let ids: Vec<_> = wrt.iter().map(|tensor| tensor.id).collect();
            kernfusion_passes::grad(&mut frames[0].graph, self.id, &ids, stopped)
        });
        match gradients {
            Some(Ok(ids)) => {
                let handle = |(id, of): (ValueId, &&Tensor)| Tensor::new(self.trace.clone(), 0, id, of.ty());
                return ids.into_iter().zip(wrt).map(handle).collect();
            }
            Some(Err(error)) => self.trace.fail(error),
            None => {}
        }
        wrt.iter().map(|tensor| (*tensor).clone()).collect()
    }

    /// The same value, through which no gradient flows.
    #[doc(alias = "detach")]
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        // A node of its own, so that other uses of the value keep their gradients.
        let shape = self.shape();
        let copy = self.trace.attempt("stop_gradient", [self], |b, ids| Ok(b.op(Reshape { shape }, &ids)?));
        if self.frame != 0 {
            self.expect("stop_gradient", |_| Some("gradients are stopped outside of a loop's body".into()));
        }
        copy.unwrap_or_else(|| self.clone()).stopped()
    }

    /// This value itself stops gradients; for values that nothing else uses and whose gradient is zero in sum, since in the
    /// body of a loop it flows.
    pub(super) fn stopped(self) -> Tensor {
        if self.frame == 0 {
            self.trace.inner.borrow_mut().stopped.insert(self.id);
        }
        self
    }

    /// Records a mistake of `op` if `check` finds a reason.
    #[track_caller]
    pub(crate) fn expect(&self, op: &'static str, check: impl FnOnce(&TensorType) -> Option<String>) {
        self.expect_of([self], op, |[ty]| check(ty));
    }

    /// As [`expect`](Self::expect), of several operands.
    #[track_caller]
    pub(crate) fn expect_of<const N: usize>(
        &self,
        operands: [&Tensor; N],
        op: &'static str,
        check: impl FnOnce([&TensorType; N]) -> Option<String>,
    ) {
        let types = operands.map(Tensor::ty);
        if let Some(reason) = check(types.each_ref()) {
            self.trace.attempt(op, operands, |_, _| Err(reason.into()));
        }
    }

    /// The name under which this state was declared, if it is one.
    pub(super) fn state_name(&self) -> Option<String> {
        if self.frame != 0 {
            return None;
        }
        match &self.trace.inner.borrow().frames[0].graph[self.id].op {
            Op::Input(Input { name, role: InputRole::State, .. }) => Some(name.clone()),
            _ => None,
        }
    }

    /// The place of an axis that may be counted from the end; a mistake of `op` if there is none.
    #[track_caller]
    pub(super) fn axis(&self, op: &'static str, axis: isize) -> Option<usize> {
        self.axes(op, &[axis]).map(|axes| axes[0])
    }

    /// The places of axes, ascending; a mistake of `op` if one does not exist or is named twice.
    #[track_caller]
    pub(super) fn axes(&self, op: &'static str, axes: &[isize]) -> Option<Vec<usize>> {
        let rank = self.rank();
        let mut places = Vec::with_capacity(axes.len());
        let mut reason = None;
        for &axis in axes {
            let place = if axis < 0 { rank.checked_add_signed(axis) } else { Some(axis.unsigned_abs()) };
            match place.filter(|&place| place < rank) {
                None => reason = Some(no_axis(axis, rank)),
                Some(place) if places.contains(&place) => {
                    reason = Some(format!("{axes:?} names an axis twice"))
                }
                Some(place) => places.push(place),
            }
        }
        places.sort_unstable();
        let complete = reason.is_none();
        self.expect(op, |_| reason);
        complete.then_some(places)
    }
}

/// That an axis does not exist, and which do.
fn no_axis(axis: isize, rank: usize) -> String {
    match rank {
        0 => format!("there is no axis {axis}: a scalar has none"),
        1 => format!("there is no axis {axis}: the only axis is 0, or -1 from the end"),
        _ => format!("there is no axis {axis}: axes are -{rank} to {}", rank - 1),
    }
}
