//! The program of one microbatch.
//!
//! Each value is computed in the *forms* that its readers ask for: whole, as the microbatch along an axis, or as the microbatch's
//! share of a combination. Values without the batch may be asked for a microbatch too (a mask beside activations, the number
//! of a row): those that are computed from nothing but coordinates and random bits are computed for the microbatch alone.

use super::axis_map::{ResultAxis, axis_map, narrowed, same_outer};
use super::batch_dependence::{BatchDependence, Classes};
use super::lookup::LocalLookup;
use super::loops::Loop;
use super::{INDEX, MicrobatchError, accumulator, accumulator_type, refused};
use kernfusion_ir::{
    Binary, Builder, Compare, DType, DotGeneral, DynamicSlice, DynamicUpdate, Graph, Input, InputRole, Iota,
    Op, Origin, Output, RandomBits, ReduceOp, Scan, ScatterAdd, TensorType, ValueId,
};
use std::collections::{BTreeMap, BTreeSet};

/// In which form a value is computed in a microbatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// All of it. First, since microbatches may be cut from it.
    Whole,
    /// The part along an axis.
    Slice(usize),
    /// This microbatch's share of a combination.
    Share,
}

/// How a form of a value is computed.
enum Recipe {
    /// By this op from operands in these forms.
    Op(Op, Vec<Form>),
    /// By a loop of a narrower body.
    Loop(Scan, Vec<Form>),
    /// By this op in the microbatch of what is looked up, with indices into that.
    Lookup(LocalLookup, Vec<Form>),
    /// It is the microbatch of an input, along this axis.
    Input(usize),
    /// By this op, and then moved by the microbatch's place along the axis: coordinates of that axis.
    Iota(Iota),
    /// By random bits that also take the number of the part.
    Random(RandomBits),
    /// It is cut from the whole value.
    Cut(usize),
}

/// The graph that computes one microbatch: its part of results, and its sums, which it adds to the accumulators.
pub(super) fn body(
    graph: &Graph,
    dependences: &Classes,
    microbatches: usize,
) -> Result<Graph, MicrobatchError> {
    let planner = Planner { graph, dependences, microbatches };
    let outputs = dependences.sliced_outputs(graph);
    let sums = dependences.accumulated.iter().map(|&id| (id, Form::Share));
    let slices = outputs.iter().map(|(output, axis)| (output.value, Form::Slice(*axis)));
    let states = dependences.states_with_rows(graph).into_keys().map(|id| (id, Form::Whole));
    let wanted = planner.wanted(sums.chain(slices).chain(states))?;
    planner.check_rows(&wanted)?;
    let mut new = Graph::new(format!("{}.body", graph.name));
    let part = part(&mut new)?;
    let mut writer = Writer { planner: &planner, new, part: Some(part), places: BTreeMap::new() };
    for (&id, forms) in &wanted {
        forms.iter().try_for_each(|&form| writer.write(id, form))?;
    }
    for (number, &id) in dependences.accumulated.iter().enumerate() {
        writer.accumulate(number, id)?;
    }
    for (output, axis) in outputs {
        let rows = writer.places[&(output.value, Form::Slice(axis))];
        match output.updates_state {
            true => writer.update_rows(output, rows, axis)?,
            false => writer.new.output(&output.name, rows),
        }
    }
    Ok(writer.new)
}

/// The body of a loop for one microbatch: its inputs in order, and then, if that counts, the number of the microbatch.
pub(super) fn narrowed_body(
    graph: &Graph,
    dependences: &Classes,
    microbatches: usize,
) -> Result<Graph, MicrobatchError> {
    let planner = Planner { graph, dependences, microbatches };
    let form = |id: ValueId| match dependences.get(id) {
        BatchDependence::Sliced(axis) => Form::Slice(axis),
        BatchDependence::Partial(_) => Form::Share,
        BatchDependence::Whole | BatchDependence::Complete => Form::Whole,
    };
    let wanted = planner.wanted(graph.outputs().iter().map(|output| (output.value, form(output.value))))?;
    let mut writer =
        Writer { planner: &planner, new: Graph::new(&graph.name), part: None, places: BTreeMap::new() };
    for (id, ..) in graph.inputs() {
        writer.write(id, form(id))?;
    }
    for (&id, forms) in &wanted {
        for &form in forms {
            if planner.recipe(id, form)?.takes_number() && writer.part.is_none() {
                writer.part = Some(part(&mut writer.new)?);
            }
            if !writer.places.contains_key(&(id, form)) {
                writer.write(id, form)?;
            }
        }
    }
    for output in graph.outputs() {
        writer.new.output(&output.name, writer.places[&(output.value, form(output.value))]);
    }
    Ok(writer.new)
}

/// The input that says which microbatch is computed.
fn part(graph: &mut Graph) -> Result<ValueId, MicrobatchError> {
    Ok(Builder::new(graph, Origin::default()).op(input(INDEX, TensorType::scalar(DType::U32)), &[])?)
}

impl Recipe {
    /// Whether it depends on the number of the microbatch.
    fn takes_number(&self) -> bool {
        match self {
            Recipe::Iota(_) | Recipe::Random(_) | Recipe::Cut(_) | Recipe::Lookup(..) => true,
            Recipe::Loop(scan, forms) => scan.body.graph().inputs().count() > forms.len(),
            Recipe::Op(..) | Recipe::Input(_) => false,
        }
    }

    /// The forms of the operands, where these are the node's.
    fn forms(&self) -> &[Form] {
        match self {
            Recipe::Op(_, forms) | Recipe::Loop(_, forms) | Recipe::Lookup(_, forms) => forms,
            Recipe::Random(_) => &[Form::Whole; 2],
            Recipe::Input(_) | Recipe::Iota(_) | Recipe::Cut(_) => &[],
        }
    }
}

struct Planner<'a> {
    graph: &'a Graph,
    dependences: &'a Classes,
    microbatches: usize,
}

impl Planner<'_> {
    /// The forms of each value that these need.
    fn wanted(
        &self,
        given: impl Iterator<Item = (ValueId, Form)>,
    ) -> Result<BTreeMap<ValueId, BTreeSet<Form>>, MicrobatchError> {
        let mut wanted: BTreeMap<ValueId, BTreeSet<Form>> = BTreeMap::new();
        for (id, form) in given {
            wanted.entry(id).or_default().insert(form);
        }
        for id in self.graph.ids().rev() {
            // Shares and microbatches first: a microbatch may be cut from the whole value.
            for form in wanted.get(&id).cloned().unwrap_or_default().into_iter().rev() {
                let recipe = self.recipe(id, form)?;
                if let Recipe::Cut(_) = recipe {
                    wanted.entry(id).or_default().insert(Form::Whole);
                }
                for (&operand, &form) in self.graph[id].operands.iter().zip(recipe.forms()) {
                    wanted.entry(operand).or_default().insert(form);
                }
            }
            if wanted.get(&id).is_some_and(|forms| forms.contains(&Form::Whole)) {
                for &operand in &self.graph[id].operands {
                    wanted.entry(operand).or_default().insert(Form::Whole);
                }
            }
        }
        Ok(wanted)
    }

    /// Checks that no microbatch reads what another one may have written: of a state whose rows microbatches update, each reads its own.
    fn check_rows(&self, wanted: &BTreeMap<ValueId, BTreeSet<Form>>) -> Result<(), MicrobatchError> {
        let states = self.dependences.states_with_rows(self.graph);
        for (&id, forms) in wanted {
            for &form in forms {
                let recipe = self.recipe(id, form)?;
                let mut operands = self.graph[id].operands.iter().zip(recipe.forms());
                let is_of_others = |(operand, form): (&ValueId, &Form)| {
                    states.get(operand).is_some_and(|&axis| *form != Form::Slice(axis))
                };
                if operands.any(is_of_others) {
                    return Err(refused(
                        self.graph,
                        id,
                        "a microbatch needs rows of a state that another one updates",
                    ));
                }
            }
        }
        Ok(())
    }

    fn recipe(&self, id: ValueId, form: Form) -> Result<Recipe, MicrobatchError> {
        let node = &self.graph[id];
        Ok(match (form, self.dependences.get(id)) {
            (Form::Whole, BatchDependence::Whole) => {
                Recipe::Op(node.op.clone(), vec![Form::Whole; node.operands.len()])
            }
            (Form::Slice(axis), BatchDependence::Sliced(_)) if matches!(node.op, Op::Input(_)) => {
                Recipe::Input(axis)
            }
            (Form::Slice(_), BatchDependence::Sliced(_)) | (Form::Share, BatchDependence::Partial(_)) => {
                self.derived(id)?
            }
            (Form::Slice(axis), BatchDependence::Whole) => self.cut(id, axis),
            (form, dependence) => {
                unreachable!("no microbatch has the form {form:?} of a value that is {dependence:?}")
            }
        })
    }

    /// A value that has a microbatch or a share because an operand has.
    fn derived(&self, id: ValueId) -> Result<Recipe, MicrobatchError> {
        let node = &self.graph[id];
        let operands: Vec<_> = node.operands.iter().map(|&operand| self.dependences.get(operand)).collect();
        if let Some(lookup) = LocalLookup::new(self.graph, id, &operands) {
            return Ok(Recipe::Lookup(lookup, lookup.slices.map(Form::Slice).to_vec()));
        }
        if let Op::Scan(scan) = &node.op {
            let of = Loop::new(scan, &operands, self.microbatches).expect("the dependences were found so");
            return Ok(Recipe::Loop(of.narrowed(self.microbatches)?, of.forms()));
        }
        let sliced = node.operands.iter().enumerate().find_map(|(slot, &operand)| {
            match self.dependences.get(operand) {
                BatchDependence::Sliced(axis) => Some((slot, axis)),
                BatchDependence::Whole | BatchDependence::Partial(_) | BatchDependence::Complete => None,
            }
        });
        let Some((slot, axis)) = sliced else {
            let form = |operand: &ValueId| match self.dependences.get(*operand) {
                BatchDependence::Partial(_) => Form::Share,
                BatchDependence::Whole | BatchDependence::Sliced(_) | BatchDependence::Complete => {
                    Form::Whole
                }
            };
            return Ok(Recipe::Op(node.op.clone(), node.operands.iter().map(form).collect()));
        };
        let types: Vec<_> = node.operands.iter().map(|&operand| &self.graph[operand].ty).collect();
        let map = axis_map(&node.op, &types, slot, axis, self.microbatches)
            .expect("the dependences were found along it");
        let forms = map.operands.iter().map(|axis| axis.map_or(Form::Whole, Form::Slice)).collect();
        Ok(Recipe::Op(narrowed(&node.op, map.result, self.microbatches), forms))
    }

    /// The microbatch of a value without the batch: computed from microbatches as long as that repeats nothing, else cut.
    fn cut(&self, id: ValueId, axis: usize) -> Recipe {
        let node = &self.graph[id];
        let narrow = || narrowed(&node.op, ResultAxis::Axis(axis), self.microbatches);
        let shape = &node.ty.shape;
        match &node.op {
            Op::Iota(iota) => {
                let mut ty = iota.ty.clone();
                ty.shape[axis] /= self.microbatches;
                Recipe::Iota(Iota { ty, axis: iota.axis })
            }
            // Elsewhere the elements of a microbatch do not lie one after another.
            Op::RandomBits(bits) if bits.parts == 1 && shape[..axis].iter().all(|&extent| extent == 1) => {
                let mut shape = shape.clone();
                shape[axis] /= self.microbatches;
                Recipe::Random(RandomBits { node: bits.node, shape, parts: self.microbatches })
            }
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_) => {
                Recipe::Op(node.op.clone(), vec![Form::Slice(axis); node.operands.len()])
            }
            Op::Broadcast(broadcast) => {
                let from = broadcast.axes.iter().position(|&to| to == axis);
                Recipe::Op(narrow(), vec![from.map_or(Form::Whole, Form::Slice)])
            }
            Op::Permute(permute) => Recipe::Op(node.op.clone(), vec![Form::Slice(permute.axes[axis])]),
            Op::Reshape(_) => {
                let from = &self.graph[node.operands[0]].ty.shape;
                match same_outer(shape, axis, from, self.microbatches) {
                    Some(from) => Recipe::Op(narrow(), vec![Form::Slice(from)]),
                    None => Recipe::Cut(axis),
                }
            }
            Op::RandomBits(_)
            | Op::Input(_)
            | Op::Constant(_)
            | Op::Reduce(_)
            | Op::Slice(_)
            | Op::Windows(_)
            | Op::Pad(_)
            | Op::Concat(_)
            | Op::DotGeneral(_)
            | Op::Gather(_)
            | Op::ScatterAdd(_)
            | Op::DynamicSlice(_)
            | Op::DynamicUpdate(_)
            | Op::Scan(_)
            | Op::Collective(_) => Recipe::Cut(axis),
        }
    }
}

struct Writer<'a> {
    planner: &'a Planner<'a>,
    new: Graph,
    /// Which microbatch is computed, if that was asked.
    part: Option<ValueId>,
    places: BTreeMap<(ValueId, Form), ValueId>,
}

impl Writer<'_> {
    fn write(&mut self, id: ValueId, form: Form) -> Result<(), MicrobatchError> {
        let microbatches = self.planner.microbatches;
        let node = &self.planner.graph[id];
        let part = || self.part.expect("what depends on the microbatch has its number");
        let place = |operand: ValueId, form: Form| self.places[&(operand, form)];
        let operands = |forms: &[Form]| -> Vec<ValueId> {
            node.operands.iter().zip(forms).map(|(&operand, &form)| place(operand, form)).collect()
        };
        let recipe = self.planner.recipe(id, form)?;
        let mut given = match &recipe {
            Recipe::Cut(_) => vec![place(id, Form::Whole)],
            recipe => operands(recipe.forms()),
        };
        if recipe.takes_number() {
            given.push(part());
        }
        let mut b = Builder::new(&mut self.new, node.origin.clone());
        let value = match recipe {
            Recipe::Op(op, _) if form == Form::Share => share(&mut b, op, given, node.ty.dtype)?,
            Recipe::Op(op, _) => b.op(op, &given)?,
            Recipe::Loop(scan, _) => b.op(scan, &given)?,
            Recipe::Lookup(lookup, _) => {
                let extent = lookup.extent / microbatches;
                let first = start(&mut b, given[2], extent)?;
                let indices = given[lookup.indices];
                let shape = b.ty(indices).shape.clone();
                let first = b.broadcast(first, &shape, &[])?;
                given[lookup.indices] = b.sub(indices, first)?;
                let op = match &node.op {
                    Op::ScatterAdd(scatter) => ScatterAdd { extent, ..*scatter }.into(),
                    gather => gather.clone(),
                };
                b.op(op, &given[..2])?
            }
            Recipe::Random(bits) => b.op(bits, &given)?,
            Recipe::Input(axis) => b.op(sliced_input(&node.op, axis, microbatches), &[])?,
            Recipe::Iota(iota) => {
                let Form::Slice(axis) = form else {
                    unreachable!("only microbatches of coordinates are moved")
                };
                moved_iota(&mut b, iota, axis, given[0])?
            }
            Recipe::Cut(axis) => cut(&mut b, given[0], axis, microbatches, given[1])?,
        };
        self.places.insert((id, form), value);
        Ok(())
    }

    /// Writes a microbatch's rows of a state that has the batch as an axis.
    fn update_rows(&mut self, output: &Output, rows: ValueId, axis: usize) -> Result<(), MicrobatchError> {
        let (graph, part) = (self.planner.graph, self.part.expect("a body knows its microbatch"));
        let state = graph.input(&output.name).expect("the verifier checked updates");
        let state = self.places[&(state, Form::Whole)];
        let mut b = Builder::new(&mut self.new, graph[output.value].origin.clone());
        let shape = b.ty(rows).shape.clone();
        let here = start(&mut b, part, shape[axis])?;
        let zero = b.constant(0.0, DType::I32)?;
        let starts = (0..shape.len()).map(|other| if other == axis { here } else { zero });
        let operands: Vec<_> = [state, rows].into_iter().chain(starts).collect();
        let all = b.op(DynamicUpdate, &operands)?;
        self.new.update(&output.name, all);
        Ok(())
    }

    /// Adds a share to its accumulator, which starts anew in the first microbatch.
    fn accumulate(&mut self, number: usize, id: ValueId) -> Result<(), MicrobatchError> {
        let node = &self.planner.graph[id];
        let combination = self.planner.dependences.combination(id);
        let ty = accumulator_type(&node.ty);
        let name = accumulator(number, &ty);
        let share = self.places[&(id, Form::Share)];
        let mut b = Builder::new(&mut self.new, node.origin.clone());
        let state = b.input(&name, InputRole::State, ty.clone())?;
        let share = b.cast(share, ty.dtype)?;
        let zero = b.constant(0.0, DType::U32)?;
        let part = self.part.expect("a body knows its microbatch");
        let first = b.compare(Compare::Eq, part, zero)?;
        let first = b.broadcast(first, &ty.shape, &[])?;
        let nothing = b.full(combination.identity(ty.dtype), &ty)?;
        let before = b.select(first, nothing, state)?;
        let op = match combination {
            ReduceOp::Sum => Binary::Add,
            ReduceOp::Max => Binary::Max,
            ReduceOp::Min => Binary::Min,
        };
        let sum = b.binary(op, before, share)?;
        self.new.update(name, sum);
        Ok(())
    }
}

/// A share of a combination. Shares of half precision are kept as `f32` until they are combined: of numbers that cancel, each would lose the
/// digits that the sum has.
fn share(
    b: &mut Builder<'_>,
    op: Op,
    mut operands: Vec<ValueId>,
    dtype: DType,
) -> Result<ValueId, MicrobatchError> {
    let is_half = |dtype: DType| matches!(dtype, DType::BF16 | DType::F16);
    let of = |b: &Builder<'_>, operand: &ValueId| b.ty(*operand).dtype;
    let widens = is_half(dtype) || operands.iter().any(|operand| of(b, operand) == DType::F32);
    if !widens {
        return Ok(b.op(op, &operands)?);
    }
    let op = match op {
        Op::Cast(_) if is_half(dtype) => return Ok(b.cast(operands[0], DType::F32)?),
        Op::Cast(cast) => return Ok(b.cast(operands[0], cast.dtype)?),
        Op::DotGeneral(dot) if is_half(dtype) => DotGeneral { dtype: DType::F32, ..dot }.into(),
        other => other,
    };
    // Products take narrow operands as they are, if both are.
    let is_product = matches!(op, Op::DotGeneral(_));
    if !is_product || operands.iter().any(|operand| of(b, operand) == DType::F32) {
        for operand in &mut operands {
            if is_half(of(b, operand)) {
                *operand = b.cast(*operand, DType::F32)?;
            }
        }
    }
    Ok(b.op(op, &operands)?)
}

fn input(name: &str, ty: TensorType) -> Input {
    Input { name: name.into(), role: InputRole::Data, ty }
}

fn sliced_input(op: &Op, axis: usize, microbatches: usize) -> Input {
    let Op::Input(whole) = op else { unreachable!("only inputs are cut outside of the program") };
    let mut ty = whole.ty.clone();
    ty.shape[axis] /= microbatches;
    input(&whole.name, ty)
}

/// Coordinates of a microbatch: along the cut axis they go on where the microbatch before has ended. They are counted as `i32`, which
/// is exact, and then take their type.
fn moved_iota(
    b: &mut Builder<'_>,
    iota: Iota,
    axis: usize,
    part: ValueId,
) -> Result<ValueId, MicrobatchError> {
    if iota.axis != axis {
        return Ok(b.op(iota, &[])?);
    }
    let ty = TensorType::new(DType::I32, iota.ty.shape);
    let own = b.op(Iota { ty: ty.clone(), axis }, &[])?;
    let start = start(b, part, ty.shape[axis])?;
    let start = b.broadcast(start, &ty.shape, &[])?;
    let moved = b.add(own, start)?;
    Ok(b.cast(moved, iota.ty.dtype)?)
}

/// The part of a whole value that the microbatch needs.
fn cut(
    b: &mut Builder<'_>,
    whole: ValueId,
    axis: usize,
    microbatches: usize,
    part: ValueId,
) -> Result<ValueId, MicrobatchError> {
    let mut sizes = b.ty(whole).shape.clone();
    sizes[axis] /= microbatches;
    let here = start(b, part, sizes[axis])?;
    let zero = b.constant(0.0, DType::I32)?;
    let starts = (0..sizes.len()).map(|other| if other == axis { here } else { zero });
    let operands: Vec<_> = [whole].into_iter().chain(starts).collect();
    Ok(b.op(DynamicSlice { sizes }, &operands)?)
}

/// Where the microbatch begins along an axis that has `extent` elements in each, as `i32[]`.
fn start(b: &mut Builder<'_>, part: ValueId, extent: usize) -> Result<ValueId, MicrobatchError> {
    let part = b.cast(part, DType::I32)?;
    Ok(b.scale(part, extent as f64)?)
}
