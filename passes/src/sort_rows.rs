//! Rows of which each chooses a matrix, sorted by matrix and multiplied in blocks, as experts work on tokens.
//!
//! ```text
//! y[i] = W[e[i]] · x[i]                  row      0 1 2 3 4 5        e      1 0 1 1 0 1
//!                                        sorted   1 4 – | 0 2 3 | 5 – –    blocks of 3
//! y = Y[place], Y[b] = X[b] · W[E[b]]ᵀ   E        0       1       1
//! ```
//!
//! A row by itself reads a whole matrix; a block of rows reads one. Elsewhere this is called a grouped product. `X[b]` are the rows of block `b`, `E[b]` the matrix that all of these
//! choose, and `place[i]` is where row `i` went. Shapes stay fixed: a matrix wastes less than one block, and rows that are left over are zero. The
//! gradient of `W`, which adds up x[i] · dy[i]ᵀ at `e[i]`, is summed in blocks in the same way.
//!
//! The sorting is counting (Knuth, "The art of computer programming", volume 3, algorithm D of section 5.2), so it is stable: rows
//! that choose the same matrix keep their order.

use crate::Rebuild;
use kernfusion_ir::{
    Binary, Builder, Compare, DType, DotGeneral, Gather, Graph, Iota, Op, ReduceOp, Result, ScatterAdd,
    TensorType, Unary, ValueId,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The fewest and most rows of a block.
const BLOCK: [usize; 2] = [8, 64];
/// Rows are sorted only if single rows would read at least this many times as many matrices as blocks do.
const FEWER: usize = 2;
/// A matrix of fewer elements is read faster than rows are sorted.
const MATRIX: usize = 1 << 10;
/// Rows whose places among those of the same matrix are counted together.
const CHUNK: usize = 64;
/// Counts are exact in `f32` below this.
const EXACT: usize = 1 << 24;

pub(crate) fn sort_rows(graph: &mut Graph) -> Result<()> {
    let products: BTreeMap<_, _> = graph.ids().filter_map(|id| Some((id, Product::of(graph, id)?))).collect();
    if products.is_empty() {
        return Ok(());
    }
    let mut rebuild = Rebuild::new(graph);
    let mut routes = BTreeMap::new();
    for id in graph.ids() {
        let Some(product) = products.get(&id) else {
            rebuild.copy(id)?;
            continue;
        };
        let key = (product.choice, product.matrices);
        let route = match routes.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let choice = rebuild.place(product.choice);
                new.insert(Route::new(&mut rebuild.builder(id), choice, product.matrices)?)
            }
        };
        let new = product.emit(graph, id, &mut rebuild, route)?;
        rebuild.replace(id, new);
    }
    *graph = rebuild.finish();
    Ok(())
}

/// A product of rows with the matrices that they choose, or the gradient of these matrices.
struct Product {
    /// The matrix of each row.
    choice: ValueId,
    /// How many there are.
    matrices: usize,
    kind: Kind,
}

enum Kind {
    /// Operand 0 or 1 of the product is gathered.
    Rows { gathered: usize },
    /// The scattered product, with how its axes are permuted before.
    Gradient { product: ValueId, order: Option<Vec<usize>> },
}

impl Product {
    /// The one that a node is, if that is faster in blocks.
    fn of(graph: &Graph, id: ValueId) -> Option<Product> {
        let node = &graph[id];
        let product = match &node.op {
            Op::DotGeneral(dot) => {
                let is_gathered = |&at: &usize| {
                    let operand = &graph[node.operands[at]];
                    let batch = [&dot.lhs_batch, &dot.rhs_batch][at];
                    operand.op == Op::Gather(Gather { axis: 0 })
                        && batch.iter().copied().eq(0..graph[operand.operands[1]].ty.rank())
                };
                let gathered = (0..2).find(is_gathered)?;
                let [table, choice] = graph[node.operands[gathered]].operands[..] else {
                    unreachable!("a gather has two operands")
                };
                Product { choice, matrices: graph[table].ty.shape[0], kind: Kind::Rows { gathered } }
            }
            Op::ScatterAdd(ScatterAdd { axis: 0, extent }) => {
                let [choice, updates] = node.operands[..] else { unreachable!("a scatter has two operands") };
                let (product, order) = match &graph[updates].op {
                    Op::Permute(permute) => (graph[updates].operands[0], Some(permute.axes.clone())),
                    _ => (updates, None),
                };
                let Op::DotGeneral(dot) = &graph[product].op else { return None };
                let batch = dot.lhs_batch.len();
                let stays = order.as_ref().is_none_or(|order| order[..batch].iter().copied().eq(0..batch));
                if !stays || batch != graph[choice].ty.rank() {
                    return None;
                }
                Product { choice, matrices: *extent, kind: Kind::Gradient { product, order } }
            }
            _ => return None,
        };
        let rows = graph[product.choice].ty.elements();
        let matrix = match product.kind {
            Kind::Rows { gathered } => graph[node.operands[gathered]].ty.elements() / rows.max(1),
            Kind::Gradient { .. } => node.ty.elements() / product.matrices.max(1),
        };
        let (block, blocks) = blocks(rows, product.matrices);
        (matrix >= MATRIX && (1..=rows / FEWER).contains(&blocks) && blocks * block < EXACT)
            .then_some(product)
    }

    fn emit(&self, graph: &Graph, id: ValueId, rebuild: &mut Rebuild<'_>, route: &Route) -> Result<ValueId> {
        match &self.kind {
            Kind::Rows { gathered } => rows_times_matrices(graph, id, *gathered, rebuild, route),
            Kind::Gradient { product, order } => {
                let sum = sum_of_blocks(graph, *product, rebuild, route)?;
                let mut b = rebuild.builder(id);
                let sum = b.op(ScatterAdd { axis: 0, extent: self.matrices }, &[route.matrix, sum])?;
                let Some(order) = order else { return Ok(sum) };
                // The rows' axes, which stay in front, are now the one of matrices.
                let rows = graph[self.choice].ty.rank();
                let inner = order[rows..].iter().map(|axis| axis + 1 - rows);
                b.permute(sum, &[0].into_iter().chain(inner).collect::<Vec<_>>())
            }
        }
    }
}

/// Product `id`, whose operand `gathered` is a matrix for each row, by blocks of rows.
fn rows_times_matrices(
    graph: &Graph,
    id: ValueId,
    gathered: usize,
    rebuild: &mut Rebuild<'_>,
    route: &Route,
) -> Result<ValueId> {
    let node = &graph[id];
    let Op::DotGeneral(dot) = &node.op else { unreachable!("a product") };
    let (table, x) = (graph[node.operands[gathered]].operands[0], node.operands[1 - gathered]);
    let mut sides = [(&dot.lhs_batch, &dot.lhs_contract), (&dot.rhs_batch, &dot.rhs_contract)];
    sides.rotate_left(gathered);
    let [(chosen, of_table), (batch, contract)] = sides;
    let free = free(graph, x, batch, contract);
    let [table, x] = [table, x].map(|value| rebuild.place(value));
    let mut b = rebuild.builder(id);
    let x = b.permute(x, &[&batch[..], &free, contract].concat())?;
    let x = route.in_blocks(&mut b, x, batch.len())?;
    let table = b.op(Gather { axis: 0 }, &[table, route.matrix])?;
    let inner = 2 + free.len();
    let product = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contract: (inner..inner + contract.len()).collect(),
        rhs_contract: of_table.iter().map(|axis| axis + 1 - chosen.len()).collect(),
        dtype: dot.dtype,
    };
    let y = b.op(product, &[x, table])?;
    let mut y = route.in_order(&mut b, y)?;
    // Its axes are the row, those of `x`, those of the table.
    if gathered == 0 {
        let (rank, split) = (b.ty(y).rank(), 1 + free.len());
        y = b.permute(y, &[0].into_iter().chain(split..rank).chain(1..split).collect::<Vec<_>>())?;
    }
    b.reshape(y, &node.ty.shape)
}

/// What a product of two operands of each row adds up to over the rows of each block.
fn sum_of_blocks(
    graph: &Graph,
    product: ValueId,
    rebuild: &mut Rebuild<'_>,
    route: &Route,
) -> Result<ValueId> {
    let Op::DotGeneral(dot) = &graph[product].op else { unreachable!("a product") };
    let [x, y] = graph[product].operands[..] else { unreachable!("a product has two operands") };
    let mut side = |value: ValueId, batch: &[usize], contract: &[usize]| {
        let free = free(graph, value, batch, contract);
        let value = rebuild.place(value);
        let mut b = rebuild.builder(product);
        let value = b.permute(value, &[batch, contract, &free].concat())?;
        route.in_blocks(&mut b, value, batch.len())
    };
    let x = side(x, &dot.lhs_batch, &dot.lhs_contract)?;
    let y = side(y, &dot.rhs_batch, &dot.rhs_contract)?;
    let summed: Vec<_> = (1..2 + dot.lhs_contract.len()).collect();
    let sum = DotGeneral {
        lhs_batch: vec![0],
        rhs_batch: vec![0],
        lhs_contract: summed.clone(),
        rhs_contract: summed,
        dtype: dot.dtype,
    };
    rebuild.builder(product).op(sum, &[x, y])
}

/// The axes of a product's operand that are neither batch nor summed.
fn free(graph: &Graph, operand: ValueId, batch: &[usize], contract: &[usize]) -> Vec<usize> {
    (0..graph[operand].ty.rank()).filter(|axis| !batch.contains(axis) && !contract.contains(axis)).collect()
}

/// How many rows a block has, and how many blocks there are at most: each matrix wastes less than one.
fn blocks(rows: usize, matrices: usize) -> (usize, usize) {
    let block = (rows / matrices.max(1) / 4).max(1).next_power_of_two().clamp(BLOCK[0], BLOCK[1]);
    (block, (rows + matrices * (block - 1)) / block)
}

/// Where rows go when they are sorted by the matrix that they choose.
struct Route {
    block: usize,
    /// The place of each row, `[rows]`.
    place: ValueId,
    /// The row at each place, `[places]`, or −1.
    row: ValueId,
    /// The matrix of each block, `[blocks]`.
    matrix: ValueId,
}

impl Route {
    fn new(b: &mut Builder<'_>, choice: ValueId, matrices: usize) -> Result<Route> {
        let rows = b.ty(choice).elements();
        let (block, blocks) = blocks(rows, matrices);
        let chunks = rows.div_ceil(CHUNK);
        // As a gather reads it; rows that fill the last chunk choose nothing.
        let choice = b.reshape(choice, &[rows])?;
        let choice = bounded(b, Binary::Max, choice, 0.0)?;
        let choice = bounded(b, Binary::Min, choice, matrices as f64 - 1.0)?;
        let filled = b.pad(choice, &[0], &[chunks * CHUNK - rows], matrices as f64)?;
        let filled = b.reshape(filled, &[chunks, CHUNK])?;
        let pairs = [chunks, CHUNK, CHUNK];
        let (own, other) = (b.broadcast(filled, &pairs, &[0, 1])?, b.broadcast(filled, &pairs, &[0, 2])?);
        let earlier = is_less(b, &pairs, 2, 1)?;
        let same = b.compare(Compare::Eq, own, other)?;
        let earlier = b.binary(Binary::And, same, earlier)?;
        let in_chunk = count(b, earlier, 2)?;
        let each = [chunks, CHUNK, matrices];
        let (own, matrix) = (b.broadcast(filled, &each, &[0, 1])?, iota(b, &each, 2)?);
        let chosen = b.compare(Compare::Eq, own, matrix)?;
        let of_chunk = count(b, chosen, 1)?;
        let before_chunk = sums_before(b, of_chunk)?;
        let all = b.reduce(ReduceOp::Sum, &[0], of_chunk)?;
        // ⌈all / block⌉
        let used = b.cast(all, DType::F32)?;
        let most = b.full_like(block as f64 - 1.0, used)?;
        let used = b.add(used, most)?;
        let used = b.scale(used, 1.0 / block as f64)?;
        let used = b.unary(Unary::Floor, used)?;
        let used = b.cast(used, DType::I32)?;
        let start = sums_before(b, used)?;
        let end = b.add(start, used)?;
        let start = b.scale(start, block as f64)?;
        let start = b.broadcast(start, &[chunks, matrices], &[1])?;
        let first = b.add(before_chunk, start)?;
        let first = b.broadcast(first, &each, &[0, 2])?;
        let none = b.zeros_like(first)?;
        let first = b.select(chosen, first, none)?;
        let first = b.reduce(ReduceOp::Sum, &[2], first)?;
        let place = b.add(first, in_chunk)?;
        let place = b.reshape(place, &[chunks * CHUNK])?;
        let place = b.slice(place, &[0], &[rows])?;
        let number = iota(b, &[rows], 0)?;
        let number = plus(b, number, 1.0)?;
        let row = b.op(ScatterAdd { axis: 0, extent: blocks * block }, &[place, number])?;
        let row = plus(b, row, -1.0)?;
        let end = b.broadcast(end, &[blocks, matrices], &[1])?;
        let number = iota(b, &[blocks, matrices], 0)?;
        let earlier = b.compare(Compare::Le, end, number)?;
        let matrix = count(b, earlier, 1)?;
        let matrix = bounded(b, Binary::Min, matrix, matrices as f64 - 1.0)?;
        Ok(Route { block, place, row, matrix })
    }

    /// Rows, `[.., a..]` with that many axes before `a`, as `[blocks, block, a..]`, zero where there is none.
    fn in_blocks(&self, b: &mut Builder<'_>, x: ValueId, axes: usize) -> Result<ValueId> {
        let inner = b.ty(x).shape[axes..].to_vec();
        let [rows, places, blocks] = [self.place, self.row, self.matrix].map(|value| b.ty(value).elements());
        let x = b.reshape(x, &[&[rows], &inner[..]].concat())?;
        let x = b.op(Gather { axis: 0 }, &[x, self.row])?;
        let no_row = b.zeros_like(self.row)?;
        let is_row = b.compare(Compare::Ge, self.row, no_row)?;
        let is_row = b.broadcast(is_row, &[&[places], &inner[..]].concat(), &[0])?;
        let zero = b.zeros_like(x)?;
        let x = b.select(is_row, x, zero)?;
        b.reshape(x, &[&[blocks, self.block], &inner[..]].concat())
    }

    /// The opposite: `[blocks, block, a..]` as `[rows, a..]`.
    fn in_order(&self, b: &mut Builder<'_>, y: ValueId) -> Result<ValueId> {
        let places = b.ty(self.row).elements();
        let y = b.reshape(y, &[&[places], &b.ty(y).shape[2..]].concat())?;
        b.op(Gather { axis: 0 }, &[y, self.place])
    }
}

fn iota(b: &mut Builder<'_>, shape: &[usize], axis: usize) -> Result<ValueId> {
    b.op(Iota { ty: TensorType::new(DType::I32, shape), axis }, &[])
}

fn plus(b: &mut Builder<'_>, x: ValueId, number: f64) -> Result<ValueId> {
    let number = b.full_like(number, x)?;
    b.add(x, number)
}

fn bounded(b: &mut Builder<'_>, op: Binary, x: ValueId, bound: f64) -> Result<ValueId> {
    let bound = b.full_like(bound, x)?;
    b.binary(op, x, bound)
}

/// Where the coordinate along one axis is less than that along another.
fn is_less(b: &mut Builder<'_>, shape: &[usize], axis: usize, other: usize) -> Result<ValueId> {
    let (x, y) = (iota(b, shape, axis)?, iota(b, shape, other)?);
    b.compare(Compare::Lt, x, y)
}

/// How many are true along an axis.
fn count(b: &mut Builder<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let x = b.cast(x, DType::I32)?;
    b.reduce(ReduceOp::Sum, &[axis], x)
}

/// The sums of what stands before, along the first axis.
fn sums_before(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let shape = b.ty(x).shape.clone();
    let pairs = [&shape[..1], &shape[..]].concat();
    let axes: Vec<_> = (1..pairs.len()).collect();
    let x = b.broadcast(x, &pairs, &axes)?;
    let before = is_less(b, &pairs, 1, 0)?;
    let none = b.zeros_like(x)?;
    let x = b.select(before, x, none)?;
    b.reduce(ReduceOp::Sum, &[1], x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dce::remove_dead_code;
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::samples::difference;
    use kernfusion_ir::{InputRole, Origin};

    /// A matrix's rows and columns.
    const SIZE: [usize; 2] = [72, 64];

    /// Rows of the shape `[choosing.., of_each, columns]` times the matrices that they choose, on either side of the product, and the gradients of both.
    struct Case<'a> {
        matrices: usize,
        choosing: &'a [usize],
        of_each: usize,
        matrices_first: bool,
    }

    impl Case<'_> {
        fn graph(&self) -> Graph {
            let mut graph = Graph::new("rows");
            let mut b = Builder::new(&mut graph, Origin::default());
            let mut input = |name: &str, dtype, shape: &[usize]| {
                b.input(name, InputRole::Data, TensorType::new(dtype, shape)).expect("an input")
            };
            let table = input("table", DType::F32, &[&[self.matrices], &SIZE[..]].concat());
            let x = input("x", DType::F32, &[self.choosing, &[self.of_each, SIZE[1]]].concat());
            let choice = input("choice", DType::I32, self.choosing);
            let mut result = vec![self.of_each, SIZE[0]];
            result.rotate_left(usize::from(self.matrices_first));
            let weight = input("weight", DType::F32, &[self.choosing, &result].concat());
            let chosen = b.op(Gather { axis: 0 }, &[table, choice]).expect("a gather");
            let batch = self.choosing.len();
            let axes: Vec<_> = (0..batch).collect();
            let dot = DotGeneral {
                lhs_batch: axes.clone(),
                rhs_batch: axes,
                lhs_contract: vec![batch + 1],
                rhs_contract: vec![batch + 1],
                dtype: DType::F32,
            };
            let operands = if self.matrices_first { [chosen, x] } else { [x, chosen] };
            let y = b.op(dot, &operands).expect("a product");
            let loss = b.mul(y, weight).and_then(|loss| b.mul(loss, y)).expect("products");
            let all: Vec<_> = (0..batch + 2).collect();
            let loss = b.reduce(ReduceOp::Sum, &all, loss).expect("a sum");
            let gradients = crate::grad(&mut graph, loss, &[table, x], &[].into()).expect("gradients");
            graph.output("y", y);
            for (name, gradient) in ["of_table", "of_x"].into_iter().zip(gradients) {
                graph.output(name, gradient);
            }
            graph
        }

        fn values(&self, choice: impl Fn(usize) -> f64) -> BTreeMap<String, Array> {
            let graph = self.graph();
            let array = |ty: &TensorType| {
                let value = |at: usize| match ty.dtype {
                    DType::I32 => choice(at),
                    _ => ((at * 7 + at / 13) % 11) as f64 - 4.5,
                };
                Array { values: (0..ty.elements()).map(value).collect(), ty: ty.clone() }
            };
            graph.inputs().map(|(id, name, _)| (name.to_string(), array(&graph[id].ty))).collect()
        }
    }

    fn sorted(graph: &Graph) -> Graph {
        let mut graph = graph.clone();
        sort_rows(&mut graph).and_then(|()| remove_dead_code(&mut graph)).expect("passes");
        graph.verify().expect("a valid graph");
        graph
    }

    /// How many matrices are gathered in the largest gather of some, or added up in a scatter.
    fn read(graph: &Graph) -> usize {
        let matrices = |id: ValueId| match graph[id].op {
            Op::Gather(_) => graph[id].ty.elements() / (SIZE[0] * SIZE[1]),
            Op::ScatterAdd(_) => graph[graph[id].operands[1]].ty.elements() / (SIZE[0] * SIZE[1]),
            _ => 0,
        };
        graph.ids().map(matrices).max().unwrap_or(0)
    }

    fn results(graph: &Graph, values: BTreeMap<String, Array>) -> BTreeMap<String, Vec<f64>> {
        let found = evaluate_arrays(graph, values, Precision::Double).expect("evaluates");
        found.into_iter().map(|(name, array)| (name, array.values)).collect()
    }

    #[test]
    fn rows_in_blocks_are_what_each_row_is_for_itself() {
        // Matrices that all rows choose, some and none, by numbers outside of the table, too.
        let choices: [fn(usize) -> f64; 4] = [
            |at| (at * at % 7 % 3) as f64,
            |_| 1.0,
            |at| [-3.0, 0.0, 2.0, 99.0][at % 4],
            |at| if at == 5 { 0.0 } else { 2.0 },
        ];
        let cases = [([70].as_slice(), 1), (&[9, 8], 1), (&[24], 3), (&[64], 1), (&[130, 1], 2)];
        for ((choosing, of_each), matrices_first) in
            cases.into_iter().flat_map(|case| [(case, false), (case, true)])
        {
            let case = Case { matrices: 3, choosing, of_each, matrices_first };
            let before = case.graph();
            let after = sorted(&before);
            let rows = choosing.iter().product();
            assert!(read(&before) >= rows && read(&after) <= blocks(rows, 3).1.max(rows / 64 + 1), "{after}");
            for choice in choices {
                let [wanted, found] = [&before, &after].map(|graph| results(graph, case.values(choice)));
                for (name, wanted) in &wanted {
                    let wrong = difference(wanted, &found[name], 1e-9);
                    assert!(wrong.is_none(), "{name} of {choosing:?}: {wrong:?}");
                }
            }
        }
    }

    #[test]
    fn few_rows_read_their_matrices_themselves() {
        let case = Case { matrices: 8, choosing: &[16], of_each: 1, matrices_first: true };
        assert_eq!(read(&sorted(&case.graph())), 16);
    }

    #[test]
    fn what_is_not_finite_stays_in_the_gradient_of_its_matrix() {
        let case = Case { matrices: 3, choosing: &[64], of_each: 1, matrices_first: true };
        let mut values = case.values(|at| if at == 0 { 1.0 } else { (at % 2 * 2) as f64 });
        values.get_mut("x").expect("the rows").values[0] = f64::INFINITY;
        let after = sorted(&case.graph());
        let gradient = &results(&after, values)["of_table"];
        let (matrix, is_finite) = (SIZE[0] * SIZE[1], |part: &[f64]| part.iter().all(|x| x.is_finite()));
        let found: Vec<_> = gradient.chunks(matrix).map(is_finite).collect();
        assert_eq!(found, [true, false, true]);
    }
}
