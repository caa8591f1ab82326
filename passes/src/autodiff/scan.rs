//! The derivative of a loop is a loop in the other order, which carries cotangents.
//!
//! ```text
//! forward    h₁ … h_T,   hₜ = f(hₜ₋₁, xₜ, w)
//! backward   dhₜ₋₁, dxₜ, dwₜ = the cotangents of f at (hₜ₋₁, xₜ, w), from t = T;   dw = Σ dwₜ
//! ```
//!
//! Forward keeps what it carries and its products; backward computes the rest again. Where dwₜ is a product of values of
//! iteration t, these are handed out and multiplied once for all iterations, since a product over all iterations is much faster than as many
//! small ones, and a weight is not read and written in every iteration.

use super::grad;
use kernfusion_ir::{
    Binary, Builder, DotGeneral, Graph, Input, InputRole, IrError, KernelEntry, Op, ReduceOp, Result, Scan,
    ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// The cotangents of a loop's operands, from those of its results (`None`: nothing flows there).
pub(super) fn vjp(
    b: &mut Builder<'_>,
    scan: &Scan,
    operands: &[ValueId],
    cotangents: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>> {
    let iteration = Iteration::new(scan, cotangents)?;
    Backward::new(b, scan, operands, &iteration).emit(cotangents)
}

/// The derivative of one iteration: the body's graph, followed by the cotangents of its inputs.
struct Iteration {
    graph: Graph,
    /// The body's inputs and the cotangent of each; `None` of integers.
    inputs: Vec<(ValueId, Option<ValueId>)>,
    /// For each output of the body, the input that is its cotangent.
    given: Vec<Option<ValueId>>,
    /// How many values belong to the body.
    forward: usize,
    /// Whether each value differs from iteration to iteration.
    changes: Vec<bool>,
}

impl Iteration {
    fn new(scan: &Scan, cotangents: &[Option<ValueId>]) -> Result<Self> {
        let body = scan.body.graph();
        let mut graph = Graph::new(format!("{}.backward", body.name));
        for id in body.ids() {
            graph.add_unchecked(body[id].clone());
        }
        // Body and cotangents share a graph; a body that is itself a derivative has cotangents already.
        let is_free =
            |prefix: &String| body.inputs().all(|(_, name, _)| !name.starts_with(&format!("{prefix}.")));
        let prefix = (1..).map(|order| "d".repeat(order)).find(is_free).expect("inputs are finitely many");
        let mut given = vec![];
        let mut total: Option<ValueId> = None;
        for (number, output) in body.outputs().iter().enumerate() {
            let ty = body[output.value].ty.clone();
            let wanted = ty.dtype.is_float() && (number < scan.carried || cotangents[number].is_some());
            given.push(None);
            if !wanted {
                continue;
            }
            let mut b = Builder::new(&mut graph, body[output.value].origin.clone());
            let dy = b.input(&format!("{prefix}.{number}"), InputRole::Data, ty.clone())?;
            given[number] = Some(dy);
            // Of Σ y·dy the cotangents are what is looked for.
            let product = b.mul(output.value, dy)?;
            let sum = b.reduce(ReduceOp::Sum, &(0..ty.rank()).collect::<Vec<_>>(), product)?;
            total = Some(match total {
                Some(total) => b.add(total, sum)?,
                None => sum,
            });
        }
        let ids: Vec<_> = body.inputs().map(|(id, ..)| id).collect();
        let floats: Vec<_> = ids.iter().copied().filter(|&id| body[id].ty.dtype.is_float()).collect();
        let gradients = match total {
            Some(total) => grad(&mut graph, total, &floats, &BTreeSet::new())?,
            None => vec![],
        };
        let of: BTreeMap<_, _> = floats.into_iter().zip(gradients).collect();
        let inputs: Vec<_> = ids.into_iter().map(|id| (id, of.get(&id).copied())).collect();
        let constants = &inputs[scan.carried + scan.sliced..];
        let mut changes: Vec<bool> = Vec::with_capacity(graph.len());
        for id in graph.ids() {
            changes.push(match &graph[id].op {
                Op::Input(_) => constants.iter().all(|(constant, _)| *constant != id),
                _ => graph[id].operands.iter().any(|operand| changes[operand.index()]),
            });
        }
        Ok(Iteration { graph, inputs, given, forward: body.len(), changes })
    }

    /// Whether a value is one of the body's that forward hands out instead of being computed again.
    fn is_kept(&self, id: ValueId) -> bool {
        let entry = self.graph[id].op.entry();
        id.index() < self.forward && matches!(entry, KernelEntry::Contraction | KernelEntry::Loop)
    }
}

/// The sum of a value over all iterations, as it is computed after the loop.
enum Sum {
    /// Of the values of all iterations.
    Plain(ValueId),
    /// One product over the iterations, too.
    Product(DotGeneral, [ValueId; 2]),
    /// A linear op of a sum.
    Linear(Op, Box<Sum>),
    /// The sum of two sums.
    Both(Box<[Sum; 2]>),
}

/// The loop in the making.
struct Backward<'a, 'b, 'g> {
    b: &'a mut Builder<'g>,
    scan: &'a Scan,
    operands: &'a [ValueId],
    iteration: &'b Iteration,
    body: Graph,
    places: BTreeMap<ValueId, ValueId>,
    /// What each iteration takes from the one before: the input of the body and its cotangent.
    carried: Vec<(usize, ValueId)>,
    /// For each sliced input, the value outside.
    slices: Vec<ValueId>,
    constants: Vec<ValueId>,
    /// Values of an iteration that are wanted outside.
    results: Vec<ValueId>,
    /// Those that are there anyway.
    outside: BTreeSet<ValueId>,
}

impl<'a, 'b, 'g> Backward<'a, 'b, 'g> {
    fn new(
        b: &'a mut Builder<'g>,
        scan: &'a Scan,
        operands: &'a [ValueId],
        iteration: &'b Iteration,
    ) -> Self {
        let carried = iteration.inputs[..scan.carried].iter().enumerate();
        let carried = carried.filter_map(|(number, (_, gradient))| Some((number, (*gradient)?))).collect();
        Backward {
            b,
            scan,
            operands,
            iteration,
            body: Graph::new(iteration.graph.name.clone()),
            places: BTreeMap::new(),
            carried,
            slices: vec![],
            constants: vec![],
            results: vec![],
            outside: BTreeSet::new(),
        }
    }

    fn emit(mut self, cotangents: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>> {
        let (scan, iteration) = (self.scan, self.iteration);
        let sliced = scan.carried + scan.sliced;
        let gradients = |range: std::ops::Range<usize>| iteration.inputs[range].iter().map(|(_, g)| *g);
        let sums: Vec<_> =
            gradients(sliced..iteration.inputs.len()).map(|g| g.map(|g| self.sum(g))).collect();
        self.results.extend(gradients(scan.carried..sliced).flatten());
        self.sums_want(sums.iter().flatten());
        self.results.sort();
        self.results.dedup();
        let backward = self.body(cotangents)?;
        let first = self.carried.iter().map(|&(number, _)| match cotangents[number] {
            Some(cotangent) => Ok(cotangent),
            None => self.b.zeros_like(self.operands[number]),
        });
        let first = first.collect::<Result<Vec<_>>>()?;
        let operands = [first, self.slices.clone(), self.constants.clone()].concat();
        let mut flows = vec![None; scan.carried];
        for (at, &(number, _)) in self.carried.iter().enumerate() {
            flows[number] = Some(self.b.op(backward.with_result(at), &operands)?);
        }
        let mut there = BTreeMap::new();
        for id in std::mem::take(&mut self.outside) {
            there.insert(id, self.in_all_turns(id, cotangents)?);
        }
        let mut outside = Outside { backward: &backward, operands: &operands, results: &self.results, there };
        for gradient in gradients(scan.carried..sliced) {
            flows.push(gradient.map(|gradient| outside.all_turns(self.b, gradient)).transpose()?);
        }
        for sum in sums {
            flows.push(sum.map(|sum| outside.sum(self.b, &sum)).transpose()?);
        }
        Ok(flows)
    }

    /// How the sum of a value over the iterations is computed.
    fn sum(&self, id: ValueId) -> Sum {
        let node = &self.iteration.graph[id];
        match (&node.op, &node.operands[..]) {
            (Op::DotGeneral(dot), &[a, b]) if [a, b].iter().all(|x| self.iteration.changes[x.index()]) => {
                Sum::Product(dot.clone(), [a, b])
            }
            (Op::Permute(_) | Op::Reshape(_), &[x]) => Sum::Linear(node.op.clone(), Box::new(self.sum(x))),
            (Op::Binary(Binary::Add), &[x, y]) => Sum::Both(Box::new([self.sum(x), self.sum(y)])),
            _ => Sum::Plain(id),
        }
    }

    /// Hands out what sums are made of.
    fn sums_want<'s>(&mut self, sums: impl Iterator<Item = &'s Sum>) {
        for sum in sums {
            match sum {
                Sum::Plain(id) => self.want(*id),
                Sum::Product(_, pair) => pair.iter().for_each(|id| self.want(*id)),
                Sum::Linear(_, sum) => self.sums_want([&**sum].into_iter()),
                Sum::Both(sums) => self.sums_want(sums.iter()),
            }
        }
    }

    /// Hands out a value, unless there is a tensor of it outside.
    fn want(&mut self, id: ValueId) {
        let sliced = self.scan.carried + self.scan.sliced;
        let is_slice = self.iteration.inputs[..sliced].iter().any(|(input, _)| *input == id);
        let is_cotangent = self.iteration.given[self.scan.carried..].contains(&Some(id));
        if is_slice || is_cotangent || self.iteration.is_kept(id) {
            self.outside.insert(id);
        } else {
            self.results.push(id);
        }
    }

    /// The body: its inputs in the order of operands, then whatever leads to what it hands out.
    fn body(&mut self, cotangents: &[Option<ValueId>]) -> Result<Scan> {
        let graph = &self.iteration.graph;
        let mut needed = BTreeSet::new();
        let mut stack: Vec<_> = self.carried.iter().map(|(_, id)| *id).chain(self.results.clone()).collect();
        while let Some(id) = stack.pop() {
            if needed.insert(id) && !self.iteration.is_kept(id) {
                stack.extend(&graph[id].operands);
            }
        }
        for number in self.carried.iter().map(|(number, _)| *number).collect::<Vec<_>>() {
            self.input(self.iteration.given[number].expect("what is carried has a cotangent"))?;
        }
        let sliced = self.scan.carried + self.scan.sliced;
        for (at, (id, _)) in
            self.iteration.inputs.iter().enumerate().filter(|(_, (id, _))| needed.contains(id))
        {
            if at < sliced {
                self.input(*id)?;
                let all = self.in_all_turns(*id, cotangents)?;
                self.slices.push(all);
            }
        }
        for id in needed.iter().copied().filter(|&id| self.iteration.is_kept(id)) {
            self.input(id)?;
            let kept = self.in_all_turns(id, cotangents)?;
            self.slices.push(kept);
        }
        for (given, cotangent) in self.iteration.given.iter().zip(cotangents).skip(self.scan.carried) {
            if let (&Some(given), &Some(cotangent)) = (given, cotangent) {
                self.input(given)?;
                self.slices.push(cotangent);
            }
        }
        for (at, (id, _)) in self.iteration.inputs.iter().enumerate().skip(sliced) {
            if needed.contains(id) {
                self.input(*id)?;
                self.constants.push(self.operands[at]);
            }
        }
        for id in needed {
            if !self.places.contains_key(&id) {
                let node = &graph[id];
                let operands: Vec<_> = node.operands.iter().map(|operand| self.places[operand]).collect();
                let new = self.body.add(node.op.clone(), &operands, node.origin.clone())?;
                self.places.insert(id, new);
            }
        }
        let handed = self.carried.iter().map(|(_, id)| *id).chain(self.results.iter().copied());
        for (number, id) in handed.enumerate() {
            self.body.output(number.to_string(), self.places[&id]);
        }
        Scan::hand_out(&mut self.body, self.carried.len());
        Ok(Scan {
            body: self.body.clone().into(),
            length: self.scan.length,
            carried: self.carried.len(),
            sliced: self.slices.len(),
            reverse: !self.scan.reverse,
            result: 0,
        })
    }

    /// Declares an input of the body for a value of the iteration.
    fn input(&mut self, id: ValueId) -> Result<()> {
        let node = &self.iteration.graph[id];
        let name = match &node.op {
            Op::Input(input) => input.name.clone(),
            op => format!("{}.{}", op.name(), id.index()),
        };
        let input = Input { name, role: InputRole::Data, ty: node.ty.clone() };
        let new = self.body.add(input, &[], node.origin.clone())?;
        self.places.insert(id, new);
        Ok(())
    }

    /// A value in all iterations: a sliced operand, the cotangent of a result, or what forward hands out.
    fn in_all_turns(&mut self, id: ValueId, cotangents: &[Option<ValueId>]) -> Result<ValueId> {
        let slices = self.scan.carried..self.scan.carried + self.scan.sliced;
        if let Some(at) = slices.clone().find(|&at| self.iteration.inputs[at].0 == id) {
            return Ok(self.operands[at]);
        }
        if let Some(number) = self.iteration.given.iter().position(|given| *given == Some(id)) {
            return Ok(cotangents[number].expect("its input was made for it"));
        }
        let outputs = self.scan.body.graph().outputs();
        let number = (self.scan.carried..outputs.len()).find(|&number| outputs[number].value == id);
        let number = number.ok_or_else(|| {
            let (op, reason) = ("scan", format!("its body does not hand out %{}", id.index()));
            IrError::Gradient { op, reason, origin: self.b.origin().clone() }
        })?;
        result(self.b, self.scan, number, self.operands)
    }
}

/// A result of a loop: a node that is there, or a new one.
fn result(b: &mut Builder<'_>, scan: &Scan, number: usize, operands: &[ValueId]) -> Result<ValueId> {
    let op = Op::Scan(scan.with_result(number));
    let first = *operands.iter().max().expect("a loop has operands");
    let later = b.graph().users(first).into_iter().map(|(user, _)| user);
    let found = later.into_iter().find(|&id| b.graph()[id].op == op && b.graph()[id].operands == operands);
    found.map_or_else(|| b.op(op, operands), Ok)
}

/// What follows the loop.
struct Outside<'a> {
    backward: &'a Scan,
    operands: &'a [ValueId],
    results: &'a [ValueId],
    /// Values that are there without it.
    there: BTreeMap<ValueId, ValueId>,
}

impl Outside<'_> {
    /// A value of every iteration.
    fn all_turns(&mut self, b: &mut Builder<'_>, id: ValueId) -> Result<ValueId> {
        if let Some(&there) = self.there.get(&id) {
            return Ok(there);
        }
        let number = self.results.binary_search(&id).expect("it is handed out");
        result(b, self.backward, self.backward.carried + number, self.operands)
    }

    fn sum(&mut self, b: &mut Builder<'_>, sum: &Sum) -> Result<ValueId> {
        match sum {
            Sum::Plain(id) => {
                let all = self.all_turns(b, *id)?;
                b.reduce(ReduceOp::Sum, &[0], all)
            }
            Sum::Product(dot, pair) => {
                let [x, y] = [self.all_turns(b, pair[0])?, self.all_turns(b, pair[1])?];
                let later = |axes: &[usize]| axes.iter().map(|axis| axis + 1).collect::<Vec<_>>();
                let over = |axes: &[usize]| [&[0], &later(axes)[..]].concat();
                let dot = DotGeneral {
                    lhs_contract: over(&dot.lhs_contract),
                    rhs_contract: over(&dot.rhs_contract),
                    lhs_batch: later(&dot.lhs_batch),
                    rhs_batch: later(&dot.rhs_batch),
                    dtype: dot.dtype,
                };
                b.op(dot, &[x, y])
            }
            Sum::Linear(op, inner) => {
                let inner = self.sum(b, inner)?;
                b.op(op.clone(), &[inner])
            }
            Sum::Both(sums) => {
                let [x, y] = [self.sum(b, &sums[0])?, self.sum(b, &sums[1])?];
                b.add(x, y)
            }
        }
    }
}
