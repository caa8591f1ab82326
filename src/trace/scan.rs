//! Loops: tracing a body once, to run it for every slice of its operands.
//!
//! While a body is traced, the trace has a *frame* more: a graph of its own, of which values from outside become inputs as
//! they are used. Parameters and inputs belong to the program, wherever they are declared.

use super::{Built, Reason, Tensor, Trace};
use kernfusion_ir::{Builder, Graph, Input, InputRole, Origin, RandomBits, Scan, TensorType, ValueId};
use kernfusion_passes::Rebuild;
use std::collections::BTreeMap;

/// A graph under construction: that of the program, or of the body of a loop.
pub(super) struct Frame {
    /// Unique in its trace.
    number: u32,
    pub(super) graph: Graph,
    /// In which order a loop reads its slices.
    length: usize,
    /// What the body's inputs stand for, in the order in which they were made.
    given: Vec<(ValueId, Given)>,
    /// Inputs for values from outside.
    captured: BTreeMap<(u32, ValueId), ValueId>,
}

/// What an input of a body stands for.
enum Given {
    /// What the iteration before handed on, and at first this value.
    Carried(Tensor),
    /// The iteration's slice of this tensor.
    Slice(Tensor),
    /// This value.
    Constant(Tensor),
}

impl Frame {
    pub(super) fn new(number: u32, name: &str, length: usize) -> Self {
        Frame { number, graph: Graph::new(name), length, given: vec![], captured: BTreeMap::new() }
    }

    /// A new input of the body.
    fn input(&mut self, given: Given, ty: TensorType) -> ValueId {
        let kind = match given {
            Given::Carried(_) => "carried",
            Given::Slice(_) => "slice",
            Given::Constant(_) => "outer",
        };
        let name = format!("{kind}.{}", self.given.len());
        let built = Builder::new(&mut self.graph, Origin::default()).input(&name, InputRole::Data, ty);
        let id = built.expect("names of a body's inputs are numbered");
        self.given.push((id, given));
        id
    }

    /// The body with its inputs in the order of a loop's operands, these operands, and how many are carried and sliced.
    fn close(&self, outputs: &[ValueId], carried: usize) -> (Graph, Vec<Tensor>, usize) {
        let kind = |given: &Given| match given {
            Given::Carried(_) => 0,
            Given::Slice(_) => 1,
            Given::Constant(_) => 2,
        };
        let mut given: Vec<_> = self.given.iter().collect();
        given.sort_by_key(|(_, given)| kind(given));
        let mut rebuild = Rebuild::new(&self.graph);
        let inputs: Vec<_> = given.iter().map(|(id, _)| *id).collect();
        let others = self.graph.ids().filter(|id| !inputs.contains(id));
        for id in inputs.iter().copied().chain(others) {
            rebuild.copy(id).expect("the types are as before");
        }
        let mut body = rebuild.new.clone();
        for (number, &id) in outputs.iter().enumerate() {
            body.output(number.to_string(), rebuild.place(id));
        }
        Scan::hand_out(&mut body, carried);
        let sliced = given.iter().filter(|(_, given)| kind(given) == 1).count();
        let operand = |(_, given): &(ValueId, Given)| match given {
            Given::Carried(tensor) | Given::Slice(tensor) | Given::Constant(tensor) => tensor.clone(),
        };
        (body, given.into_iter().map(operand).collect(), sliced)
    }
}

/// The order in which a loop takes slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScanOrder {
    /// From the first to the last.
    #[default]
    Forward,
    /// From the last to the first.
    Backward,
}

/// What an iteration of a loop gives.
#[derive(Debug, Clone, Default)]
pub struct Iteration {
    /// The next values of what is carried, of the types of the first ones.
    pub carried: Vec<Tensor>,
    /// Values of which all iterations' are wanted.
    pub each: Vec<Tensor>,
}

impl Trace {
    /// A loop of `length` iterations. `iteration` is called once, to trace what each of them does: it gets what is carried (`first` in
    /// the first iteration) and the iteration's slices of `slices` along their first axis, whose extent is `length`. It may use any
    /// value from outside. The result has what is carried last, and for each of `each` a tensor with a first axis more,
    /// every iteration's at the place of its slices.
    ///
    /// ```
    /// use kernfusion::prelude::*;
    /// # use kernfusion::trace::{Iteration, ScanOrder};
    /// let trace = Trace::new();
    /// let x = trace.input("x", [10, 4], DType::F32);
    /// // Running sums of the rows.
    /// let sums = trace.scan(ScanOrder::Forward, 10, &[&trace.zeros([4])], &[&x], |carried, slices| {
    ///     let sum = &carried[0] + &slices[0];
    ///     Iteration { carried: vec![sum.clone()], each: vec![sum] }
    /// });
    /// assert_eq!(sums.each[0].shape(), [10, 4]);
    /// # trace.finish(&[("sums", &sums.each[0])])?;
    /// # Ok::<(), kernfusion::Error>(())
    /// ```
    #[track_caller]
    pub fn scan(
        &self,
        iterations: ScanOrder,
        length: usize,
        first: &[&Tensor],
        slices: &[&Tensor],
        iteration: impl FnOnce(&[Tensor], &[Tensor]) -> Iteration,
    ) -> Iteration {
        if let Some(unfit) = slices.iter().find(|x| x.shape().first() != Some(&length)) {
            unfit.expect("scan", |ty| Some(format!("{ty} has not {length} slices")));
        }
        let (carried, sliced) = self.open(length, first, slices);
        let Iteration { carried: next, each } = iteration(&carried, &sliced);
        let outputs: Vec<_> = next.iter().chain(&each).collect();
        let all = |x: &Tensor| x.ty().with_shape([&[length], &x.shape()[..]].concat());
        let closed = self.closed(&outputs, first.len(), next.len());
        let (body, operands, sliced) = match closed {
            Ok(closed) => closed,
            Err(Reason(reason)) => {
                self.attempt_all("scan", first, |_, _| Err(reason.into()));
                let each = each.iter().map(|x| self.placeholder(&all(x))).collect();
                return Iteration { carried: first.iter().map(|&x| x.clone()).collect(), each };
            }
        };
        let reverse = iterations == ScanOrder::Backward;
        let scan = Scan { body: body.into(), length, carried: first.len(), sliced, reverse, result: 0 };
        let operands: Vec<_> = operands.iter().collect();
        let types = first.iter().map(|x| x.ty()).chain(each.iter().map(all));
        let mut results = vec![];
        for ty in types {
            let of = scan.with_result(results.len());
            let built = self.attempt_all("scan", &operands, |b, ids| Ok(b.op(of, ids)?));
            results.push(built.unwrap_or_else(|| self.placeholder(&ty)));
        }
        let each = results.split_off(first.len());
        Iteration { carried: results, each }
    }

    /// Opens the frame of a body, with handles of what is carried and of slices.
    fn open(&self, length: usize, first: &[&Tensor], slices: &[&Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
        let number = {
            let mut inner = self.inner.borrow_mut();
            inner.frames_made += 1;
            let number = inner.frames_made;
            inner.frames.push(Frame::new(number, "body", length));
            number
        };
        let input = |given, ty: TensorType| {
            let mut inner = self.inner.borrow_mut();
            let frame = inner.frames.last_mut().expect("opened above");
            Tensor::new(self.clone(), number, frame.input(given, ty.clone()), ty)
        };
        let carried = first.iter().map(|&x| input(Given::Carried(x.clone()), x.ty())).collect();
        let slice = |x: &Tensor| x.ty().with_shape(x.shape().get(1..).unwrap_or_default());
        let slices = slices.iter().map(|&x| input(Given::Slice(x.clone()), slice(x))).collect();
        (carried, slices)
    }

    /// Closes the frame of a body.
    fn closed(
        &self,
        outputs: &[&Tensor],
        carried: usize,
        next: usize,
    ) -> Result<(Graph, Vec<Tensor>, usize), Reason> {
        let depth = self.depth();
        let ids: Result<Vec<_>, _> = outputs.iter().map(|output| self.resolve(output, depth)).collect();
        let frame = self.inner.borrow_mut().frames.pop().expect("open");
        if next != carried {
            return Err(format!("carries {carried} values, but an iteration gives {next}").into());
        }
        Ok(frame.close(&ids?, carried))
    }

    /// How many loops are open.
    pub(super) fn depth(&self) -> usize {
        self.inner.borrow().frames.len() - 1
    }

    /// The number of a frame.
    pub(super) fn frame(&self, depth: usize) -> u32 {
        self.inner.borrow().frames[depth].number
    }

    /// A value in the frame of that depth, where one from outside becomes a constant of the loop.
    pub(super) fn resolve(&self, tensor: &Tensor, depth: usize) -> Built {
        let home = self.inner.borrow().frames[..=depth].iter().position(|f| f.number == tensor.frame());
        let home = home.ok_or("a value of a loop's body is used outside of it")?;
        let mut value = tensor.clone();
        for level in home + 1..=depth {
            let mut inner = self.inner.borrow_mut();
            let frame = &mut inner.frames[level];
            let key = (value.frame(), value.id());
            let id = match frame.captured.get(&key) {
                Some(&id) => id,
                None => {
                    let id = frame.input(Given::Constant(value.clone()), value.ty());
                    frame.captured.insert(key, id);
                    id
                }
            };
            let number = frame.number;
            value = Tensor::new(self.clone(), number, id, tensor.ty());
        }
        Ok(value.id())
    }

    /// Random words in the frame of that depth. A body's are slices of those of all iterations, so that every iteration draws anew.
    #[track_caller]
    pub(super) fn bits_at(&self, depth: usize, node: u32, shape: Vec<usize>) -> Tensor {
        let ty = kernfusion_ir::TensorType::new(kernfusion_ir::DType::U32, shape.clone());
        if depth == 0 {
            let op = RandomBits { node, shape, parts: 1 };
            let (seed, step) = (self.seed(), self.step());
            let bits = self.attempt_at(0, "random_bits", &[&seed, &step], |b, ids| Ok(b.op(op, ids)?));
            return bits.unwrap_or_else(|| self.placeholder(&ty));
        }
        let length = self.inner.borrow().frames[depth].length;
        let all = self.bits_at(depth - 1, node, [&[length], &shape[..]].concat());
        let mut inner = self.inner.borrow_mut();
        let frame = &mut inner.frames[depth];
        let id = frame.input(Given::Slice(all), ty.clone());
        let number = frame.number;
        Tensor::new(self.clone(), number, id, ty)
    }
}

/// An input of the program.
pub(super) fn declared(b: &mut Builder<'_>, name: &str, role: InputRole, ty: &TensorType) -> Built {
    if let Some(first) = b.graph().input(name) {
        let location = b.graph()[first].origin.location.as_ref();
        let place = location.map(|location| format!(", first at {location}")).unwrap_or_default();
        return Err(format!("\"{name}\" is declared twice{place}").into());
    }
    Ok(b.op(Input { name: name.into(), role, ty: ty.clone() }, &[])?)
}
