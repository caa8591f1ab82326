//! Products with matrices that a program only reads multiply whole numbers: rows of both operands are rounded to bytes.
//!
//! ```text
//! %1 = cast %w : f32[8,6]                      %q = i8 of x's rows, each times 127 over its largest number
//! %2 = dot_general %x, %1 : f32[4,8]    →      %2 = dot_general (cast %q), (cast %w) : f32[4,8]
//!                                              %3 = mul %2, (rows' largest numbers over 127)
//! ```
//!
//! A row is what one sum runs over. The scales of a matrix of bytes are moved behind the product, if they are not there already; any other matrix is
//! rounded by rows, too, which a program that writes no state does once. Both operands
//! are then bytes in memory that are read as `f32`, which is all that a back end has to see: sums of such products are whole numbers, and a
//! processor may have instructions for them. Rounding with one scale for each row, made anew for each input, is that of Dettmers, Lewis, Belkada and
//! Zettlemoyer ("LLM.int8(): 8-bit matrix multiplication for transformers at scale", 2022), without its exception for columns with outliers.
//!
//! Invariant: without rounding, the program computes what it did; inputs and outputs keep their types.

use crate::product_operands::{Side, is_widened, spread};
use crate::{Rebuild, dequantized_products, loops, parameters};
use kernfusion_ir::{Binary, DType, DotGeneral, Graph, KernelEntry, Op, ReduceOp, Result, Unary, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The largest byte that numbers are rounded to.
const LARGEST: f64 = 127.0;
/// What the largest number of a row counts as at least: rows of zeros stay zeros.
const LEAST: f64 = 1e-30;
/// Shorter sums, and products that multiply each number fewer times, are quicker than rounding what is multiplied.
const LEAST_TERMS: usize = 32;
const LEAST_USES: usize = 64;
/// Products of fewer rows are quicker than rounding the matrix for them.
const LEAST_ROWS: usize = 32;

pub(crate) fn use_int8_products(graph: &mut Graph) -> Result<()> {
    loops::change_bodies(graph, use_int8_products)?;
    let matrices = Matrices::of(graph);
    let mut rounding = Rounding { old: graph, rebuild: Rebuild::new(graph), rounded: BTreeMap::new() };
    for id in graph.ids() {
        match matrices.product(id) {
            Some(product) => rounding.product(id, product)?,
            None => {
                rounding.rebuild.copy(id)?;
            }
        }
    }
    *graph = rounding.rebuild.finish();
    Ok(())
}

/// Whether there is a product of bytes, or one whose operands would be rounded, if it had rows enough.
pub fn has_int8_products(graph: &Graph) -> bool {
    let matrices = Matrices { least_rows: 1, ..Matrices::of(graph) };
    graph.ids().any(|id| matrices.product(id).is_some()) || dequantized_products::are_in(graph)
}

/// The matrices that a program only reads.
struct Matrices<'a> {
    graph: &'a Graph,
    /// What is computed of parameters alone.
    known: BTreeSet<ValueId>,
    /// Rows of the other operand from which on a matrix that is no bytes yet is rounded for a product.
    least_rows: usize,
}

/// A product with such a matrix.
struct Product<'a> {
    dot: &'a DotGeneral,
    operands: [Operand; 2],
}

/// Where the bytes of an operand come from.
enum Operand {
    Kept(Bytes),
    Rounded(Rows),
}

impl<'a> Matrices<'a> {
    fn of(graph: &'a Graph) -> Self {
        let least_rows = if parameters::is_read_only(graph) { 1 } else { LEAST_ROWS };
        Matrices { graph, known: parameters::computed_of(graph), least_rows }
    }

    /// The product of a matrix with something else that a node is, if its operands are to be rounded.
    fn product(&self, id: ValueId) -> Option<Product<'a>> {
        let node = &self.graph[id];
        let Op::DotGeneral(dot) = &node.op else { return None };
        let operands = [node.operands[0], node.operands[1]];
        let shapes = operands.map(|operand| &self.graph[operand].ty.shape[..]);
        let sides = Side::both(dot, shapes.map(<[usize]>::len));
        let dtype = |value: ValueId| self.graph[value].ty.dtype;
        let has_digits = |value| matches!(dtype(value), DType::F32 | DType::BF16 | DType::F16);
        if !operands.into_iter().chain([id]).all(has_digits) || dot.lhs_contract.is_empty() {
            return None;
        }
        let kept = [0, 1].map(|side| {
            let is_f32 = dtype(operands[side]) == DType::F32;
            Bytes::of(self.graph, operands[side], &sides[side]).filter(|_| is_f32)
        });
        let (matrix, kept) = match kept {
            [Some(kept), None] => (0, Some(kept)),
            [None, Some(kept)] => (1, Some(kept)),
            [Some(_), Some(_)] => return None,
            [None, None] => match operands.map(|operand| self.known.contains(&operand)) {
                [true, false] => (0, None),
                [false, true] => (1, None),
                _ => return None,
            },
        };
        let other = 1 - matrix;
        let rows = Rows::of(self.graph, operands[other], &sides[other])?;
        let pays = || {
            let terms: usize = sides[other].summed.iter().map(|&axis| shapes[other][axis]).product();
            let multiplications = self.graph[id].ty.elements() * terms;
            terms >= LEAST_TERMS
                && multiplications >= LEAST_USES * self.graph[rows.value].ty.elements()
                && sides[other].rows(shapes[other], dot.lhs_batch.len()) >= self.least_rows
        };
        let matrix_operand = match kept {
            Some(kept) => Operand::Kept(kept),
            None if pays() => Operand::Rounded(Rows::along(operands[matrix], &sides[matrix])),
            None => return None,
        };
        let rows = Operand::Rounded(rows);
        let operands = if matrix == 0 { [matrix_operand, rows] } else { [rows, matrix_operand] };
        Some(Product { dot, operands })
    }
}

/// How an operand is rounded.
struct Rows {
    /// What is rounded.
    value: ValueId,
    /// Along these axes it has one scale; the largest number along those of one step is that of the next one.
    steps: Vec<Vec<usize>>,
    /// What the operand shows of it: views, the last one first.
    views: Vec<ValueId>,
    /// In the result, of each axis that is left.
    places: Vec<usize>,
}

impl Rows {
    /// An operand with a scale for each row.
    fn along(value: ValueId, side: &Side) -> Rows {
        let mut summed = side.summed.clone();
        summed.sort_unstable();
        Rows { value, steps: vec![summed], views: vec![], places: side.row_places() }
    }

    /// The same; but of what windows see of images `[images, channels, ..]`, the images, each with one scale, so that no number is rounded twice. There
    /// is none if views do not leave the images' axis first.
    fn of(graph: &Graph, value: ValueId, side: &Side) -> Option<Rows> {
        let (mut image, mut views) = (value, vec![]);
        while graph[image].op.entry() == KernelEntry::View {
            views.push(image);
            image = graph[image].operands[0];
        }
        if !views.iter().any(|&view| matches!(graph[view].op, Op::Windows(_))) {
            return Some(Rows::along(value, side));
        }
        let shape = &graph[image].ty.shape;
        let keeps_images = |&view: &ValueId| match &graph[view].op {
            Op::Permute(permute) => permute.axes[0] == 0,
            Op::Windows(_) | Op::Reshape(_) => graph[view].ty.shape[0] == shape[0],
            _ => false,
        };
        let steps = vec![(2..shape.len()).collect(), vec![1]];
        let rows = Rows { value: image, steps, places: vec![side.places[0]?], views };
        (shape.len() > 2 && rows.views.iter().all(keeps_images)).then_some(rows)
    }
}

/// A matrix of bytes as a product reads it.
struct Bytes {
    /// The bytes, widened.
    wide: ValueId,
    /// What they are multiplied by, and where its axes are in the result.
    scales: Option<(ValueId, Vec<usize>)>,
}

impl Bytes {
    /// What an operand is, if it is bytes times numbers that are the same along the axes that are summed.
    fn of(graph: &Graph, value: ValueId, side: &Side) -> Option<Self> {
        if is_widened(graph, value) {
            return Some(Bytes { wide: value, scales: None });
        }
        let node = &graph[value];
        let Op::Binary(Binary::Mul) = node.op else { return None };
        let scaled = |wide: ValueId, scales: ValueId| match &graph[scales].op {
            Op::Broadcast(spread) if is_widened(graph, wide) => {
                let places: Option<Vec<_>> = spread.axes.iter().map(|&axis| side.places[axis]).collect();
                Some(Bytes { wide, scales: Some((graph[scales].operands[0], places?)) })
            }
            _ => None,
        };
        scaled(node.operands[0], node.operands[1]).or_else(|| scaled(node.operands[1], node.operands[0]))
    }
}

struct Rounding<'a> {
    old: &'a Graph,
    rebuild: Rebuild<'a>,
    /// Old values whose rows along the axes of these steps were rounded: as bytes, widened, and what rows must be multiplied by.
    rounded: BTreeMap<(ValueId, Vec<Vec<usize>>), [ValueId; 2]>,
}

impl Rounding<'_> {
    fn product(&mut self, id: ValueId, product: Product) -> Result<()> {
        let Product { dot, operands } = product;
        let (mut read, mut factors) = (vec![], vec![]);
        for operand in operands {
            match operand {
                Operand::Kept(Bytes { wide, scales }) => {
                    read.push(self.rebuild.place(wide));
                    factors.extend(scales.map(|(scales, places)| (self.rebuild.place(scales), places)));
                }
                Operand::Rounded(rows) => {
                    let [wide, scales] = self.rounded(&rows)?;
                    read.push(self.shown(wide, &rows.views)?);
                    factors.push((scales, rows.places));
                }
            }
        }
        let ty = &self.old[id].ty;
        let mut b = self.rebuild.builder(id);
        let mut product = b.op(DotGeneral { dtype: DType::F32, ..dot.clone() }, &read)?;
        for (factor, places) in factors {
            let factor = spread(&mut b, factor, places, &ty.shape)?;
            product = b.mul(product, factor)?;
        }
        let product = b.cast(product, ty.dtype)?;
        self.rebuild.replace(id, product);
        Ok(())
    }

    /// What views, of which the last one comes first, show of a new value.
    fn shown(&mut self, value: ValueId, views: &[ValueId]) -> Result<ValueId> {
        let show =
            |value, view: &ValueId| self.rebuild.builder(*view).op(self.old[*view].op.clone(), &[value]);
        views.iter().rev().try_fold(value, show)
    }

    /// Rows as bytes, widened again, and the factor of each row.
    fn rounded(&mut self, rows: &Rows) -> Result<[ValueId; 2]> {
        let Rows { value, steps, .. } = rows;
        let value = *value;
        if let Some(&rounded) = self.rounded.get(&(value, steps.clone())) {
            return Ok(rounded);
        }
        let (x, shape) = (self.rebuild.place(value), &self.old[value].ty.shape);
        let along = steps.concat();
        let left: Vec<usize> = (0..shape.len()).filter(|axis| !along.contains(axis)).collect();
        let mut b = self.rebuild.builder(value);
        let x = b.cast(x, DType::F32)?;
        let size = b.unary(Unary::Abs, x)?;
        let largest = steps.iter().try_fold(size, |size, along| b.reduce(ReduceOp::Max, along, size))?;
        let least = b.full_like(LEAST, largest)?;
        let largest = b.binary(Binary::Max, largest, least)?;
        let whole = b.full_like(LARGEST, largest)?;
        let (factors, scales) = (b.div(whole, largest)?, b.div(largest, whole)?);
        let factors = b.broadcast(factors, shape, &left)?;
        let scaled = b.mul(x, factors)?;
        let nearest = b.unary(Unary::Round, scaled)?;
        let bytes = b.cast(nearest, DType::I8)?;
        let wide = b.cast(bytes, DType::F32)?;
        self.rounded.insert((value, steps.clone()), [wide, scales]);
        Ok([wide, scales])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernfusion_ir::evaluate::{Array, Precision, evaluate_arrays};
    use kernfusion_ir::{Input, InputRole, Origin, TensorType, Windows};
    use std::collections::BTreeMap;

    /// Wherever axes of both operands lie, results are off by half a step for each number that was rounded at most.
    #[test]
    fn every_arrangement_of_axes_is_rounded_by_rows() {
        let dot =
            |lhs_batch: &[usize], rhs_batch: &[usize], lhs_contract: &[usize], rhs_contract: &[usize]| {
                let [lhs_batch, rhs_batch] = [lhs_batch, rhs_batch].map(<[usize]>::to_vec);
                let [lhs_contract, rhs_contract] = [lhs_contract, rhs_contract].map(<[usize]>::to_vec);
                DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, dtype: DType::F32 }
            };
        // Shapes of x and of the matrix, whose last axis has no scales, and the product.
        let cases: [(&[usize], &[usize], DotGeneral); 5] = [
            (&[3, 8], &[5, 8], dot(&[], &[], &[1], &[1])),
            (&[8, 2, 3], &[5, 8], dot(&[], &[], &[0], &[1])),
            (&[3, 4, 8], &[4, 5, 8], dot(&[1], &[0], &[2], &[2])),
            (&[3, 4, 2, 8], &[2, 4, 5, 8], dot(&[1, 2], &[1, 0], &[3], &[3])),
            (&[4, 2, 3, 6, 8], &[2, 4, 6, 8], dot(&[0, 1], &[1, 0], &[4], &[3])),
        ];
        for (number, (x, w, dot)) in cases.into_iter().enumerate() {
            for turned in [false, true] {
                let dot = match turned {
                    false => dot.clone(),
                    true => DotGeneral {
                        lhs_batch: dot.rhs_batch.clone(),
                        rhs_batch: dot.lhs_batch.clone(),
                        lhs_contract: dot.rhs_contract.clone(),
                        rhs_contract: dot.lhs_contract.clone(),
                        dtype: dot.dtype,
                    },
                };
                let (graph, inputs) = program(x, w, &dot, turned, number);
                let mut rounded = graph.clone();
                use_int8_products(&mut rounded).unwrap();
                assert!(rounded.ids().any(|id| rounded[id].op == Op::Unary(Unary::Round)));
                let of = |graph: &Graph| evaluate_arrays(graph, inputs.clone(), Precision::Double).unwrap();
                let (exact, found) = (of(&graph)["y"].values.clone(), of(&rounded)["y"].values.clone());
                // Numbers and scales are below 1, bytes at most 127, and there are 8 terms.
                let bound = 0.5 / 127.0 * 127.0 * 8.0;
                let far = exact.iter().zip(&found).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                assert!(far > 0.0 && far < bound, "{number} {turned}: {far}");
                let size = exact.iter().fold(0.0_f64, |size, x| size.max(x.abs()));
                assert!(far < 0.02 * size, "{number} {turned}: {far} of {size}");
            }
        }
    }

    /// A matrix of floats is rounded if the program only reads it, once where it writes nothing, and else for as many rows as pay for it.
    #[test]
    fn matrices_that_are_only_read_are_rounded_by_rows() {
        let is_rounded = |roles: [InputRole; 2], rows: usize, writes: &[&str]| {
            let mut graph = Graph::default();
            let mut b = kernfusion_ir::Builder::new(&mut graph, Origin::default());
            let mut input = |name: &str, role, shape: &[usize]| {
                b.op(Input { name: name.into(), role, ty: TensorType::new(DType::F32, shape) }, &[]).unwrap()
            };
            let terms = LEAST_TERMS;
            let x = input("x", roles[0], &[rows, terms]);
            let w = input("w", roles[1], &[terms, LEAST_USES]);
            let written = input("state", InputRole::State, &[1]);
            let half = b.full_like(0.5, w).unwrap();
            let scaled = b.mul(w, half).unwrap();
            let y = b.op(product(1, 0, DType::F32), &[x, scaled]).unwrap();
            graph.output("y", y);
            for &name in writes {
                graph.update(name, if name == "w" { w } else { written });
            }
            let mut rounded = graph.clone();
            use_int8_products(&mut rounded).unwrap();
            let casts = rounded.ids().filter(|&id| rounded[id].ty.dtype == DType::I8).count();
            assert_eq!(has_int8_products(&graph), casts == 2 || rows < LEAST_ROWS && writes == ["state"]);
            casts == 2
        };
        use InputRole::{Data, State};
        assert!(is_rounded([Data, State], 2, &[]));
        assert!(!is_rounded([Data, State], 2, &["w"]), "it is trained");
        assert!(!is_rounded([Data, State], LEAST_ROWS - 1, &["state"]), "too few rows");
        assert!(is_rounded([Data, State], LEAST_ROWS, &["state"]));
        assert!(!is_rounded([Data, Data], 64, &[]) && !is_rounded([State, State], 64, &[]));
    }

    /// Products of 16 bits are rounded as those of `f32` are, and keep their type.
    #[test]
    fn products_of_16_bits_are_rounded() {
        let mut graph = Graph::default();
        let mut b = kernfusion_ir::Builder::new(&mut graph, Origin::default());
        let mut narrow = |name: &str, role, shape: &[usize]| {
            let ty = TensorType::new(DType::F32, shape);
            let wide = b.op(Input { name: name.into(), role, ty }, &[]).unwrap();
            b.cast(wide, DType::BF16).unwrap()
        };
        let [x, w] =
            [narrow("x", InputRole::Data, &[3, 40]), narrow("w", InputRole::State, &[LEAST_USES, 40])];
        let y = b.op(product(1, 1, DType::BF16), &[x, w]).unwrap();
        graph.output("y", y);
        let mut rounded = graph.clone();
        use_int8_products(&mut rounded).unwrap();
        assert!(rounded.ids().any(|id| rounded[id].ty.dtype == DType::I8));
        let mut next = numbers(9);
        let mut of = |shape: &[usize]| {
            let ty = TensorType::new(DType::F32, shape);
            let values = (0..ty.elements()).map(|_| next()).collect();
            Array { ty, values }
        };
        let inputs =
            BTreeMap::from([("x".to_string(), of(&[3, 40])), ("w".to_string(), of(&[LEAST_USES, 40]))]);
        let [exact, found] = [&graph, &rounded].map(|graph| {
            evaluate_arrays(graph, inputs.clone(), Precision::Double).unwrap().remove("y").unwrap()
        });
        assert_eq!(found.ty, exact.ty);
        let far = exact.values.iter().zip(&found.values).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert!(far > 0.0 && far < 0.1, "{far}");
    }

    /// Windows of images see bytes of these, with one scale for each image.
    #[test]
    fn images_are_rounded_before_windows_see_them() {
        let (images, channels, features, size) = (3, 8, 70, [9, 11]);
        let summed = channels * 9;
        let places = [size[0] - 2, size[1] - 2];
        let mut graph = Graph::default();
        let mut b = kernfusion_ir::Builder::new(&mut graph, Origin::default());
        let mut input = |name: &str, role, shape: &[usize]| {
            b.op(Input { name: name.into(), role, ty: TensorType::new(DType::F32, shape) }, &[]).unwrap()
        };
        let x = input("x", InputRole::Data, &[images, channels, size[0], size[1]]);
        let w = input("w", InputRole::State, &[features, summed]);
        let windows = Windows { places: vec![3, 3], stride: vec![1, 1], dilation: vec![1, 1] };
        let windows = b.op(windows, &[x]).unwrap();
        let turned = b.permute(windows, &[0, 1, 4, 5, 2, 3]).unwrap();
        let columns = b.reshape(turned, &[images, summed, places[0] * places[1]]).unwrap();
        // Where images are not the first axis, nothing says which numbers have one scale.
        let exchanged = b.permute(columns, &[1, 0, 2]).unwrap();
        let other = b.op(product(1, 0, DType::F32), &[w, exchanged]).unwrap();
        let mut of_exchanged = graph.clone();
        of_exchanged.output("y", other);
        assert!(!has_int8_products(&of_exchanged));
        let mut b = kernfusion_ir::Builder::new(&mut graph, Origin::default());
        let y = b.op(product(1, 1, DType::F32), &[w, columns]).unwrap();
        graph.output("y", y);
        let mut rounded = graph.clone();
        use_int8_products(&mut rounded).unwrap();
        let bytes = |id: &ValueId| rounded[*id].ty.dtype == DType::I8;
        let shapes: Vec<_> = rounded.ids().filter(bytes).map(|id| rounded[id].ty.shape.clone()).collect();
        assert_eq!(shapes, [vec![features, summed], graph[x].ty.shape.clone()]);
        // Images whose numbers are far from each other in size.
        let mut next = numbers(3);
        let mut of = |id: ValueId| {
            let ty = graph[id].ty.clone();
            let image = ty.elements() / if id == x { images } else { 1 };
            let values = (0..ty.elements()).map(|at| next() * 100f64.powi((at / image) as i32)).collect();
            Array { ty, values }
        };
        let inputs = BTreeMap::from([("x".to_string(), of(x)), ("w".to_string(), of(w))]);
        let results = [&graph, &rounded]
            .map(|graph| evaluate_arrays(graph, inputs.clone(), Precision::Double).unwrap());
        let [exact, found] = results.each_ref().map(|results| &results["y"].values);
        let of_image = |at: usize| at / (places[0] * places[1]) % images;
        for image in 0..images {
            let part = |values: &[f64]| {
                let mine = values.iter().enumerate().filter(|(at, _)| of_image(*at) == image);
                mine.map(|(_, value)| *value).collect::<Vec<_>>()
            };
            let (exact, found) = (part(exact), part(found));
            let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
            let error = norm(&mut exact.iter().zip(&found).map(|(x, y)| x - y));
            let size = norm(&mut exact.iter().copied());
            assert!(error > 0.0 && error < 0.02 * size, "{image}: {error} of {size}");
        }
    }

    /// A product that sums one axis of each operand.
    fn product(lhs: usize, rhs: usize, dtype: DType) -> DotGeneral {
        let [lhs_contract, rhs_contract] = [lhs, rhs].map(|axis| vec![axis]);
        DotGeneral { lhs_batch: vec![], rhs_batch: vec![], lhs_contract, rhs_contract, dtype }
    }

    /// Numbers from −1 to 1.
    fn numbers(seed: usize) -> impl FnMut() -> f64 {
        let mut number = seed as u64 * 977 + 1;
        move || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        }
    }

    /// x times a matrix of bytes with a scale for each row, or the other way round.
    fn program(
        x: &[usize],
        w: &[usize],
        dot: &DotGeneral,
        turned: bool,
        seed: usize,
    ) -> (Graph, BTreeMap<String, Array>) {
        let mut graph = Graph::default();
        let mut b = kernfusion_ir::Builder::new(&mut graph, Origin::default());
        let rows = &w[..w.len() - 1];
        let types = [
            ("x", TensorType::new(DType::F32, x)),
            ("w", TensorType::new(DType::I8, w)),
            ("s", TensorType::new(DType::F32, rows)),
        ];
        let [x, bytes, scales] = types
            .clone()
            .map(|(name, ty)| b.op(Input { name: name.into(), role: InputRole::State, ty }, &[]).unwrap());
        let wide = b.cast(bytes, DType::F32).unwrap();
        let spread = b.broadcast(scales, w, &(0..rows.len()).collect::<Vec<_>>()).unwrap();
        let matrix = b.mul(spread, wide).unwrap();
        let operands = if turned { [matrix, x] } else { [x, matrix] };
        let y = b.op(dot.clone(), &operands).unwrap();
        graph.output("y", y);
        let mut next = numbers(seed);
        let value = |(name, ty): (&str, TensorType)| {
            let mut one = || if ty.dtype == DType::I8 { (127.0 * next()).round() } else { next() };
            let values = (0..ty.elements()).map(|_| one()).collect();
            (name.to_string(), Array { ty, values })
        };
        (graph, types.into_iter().map(value).collect())
    }
}
