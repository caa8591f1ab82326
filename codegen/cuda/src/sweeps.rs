//! Sweeps of a chain over its columns, which find reductions, store entries and multiply values again.
//!
//! The first sweep finds all reductions that it can ([`running`](super::running)), second products among them if nothing else is needed for
//! their values. How products' tiles lie, and how values get into second products, is up to a [`Layout`]: [`strip`](super::strip) keeps
//! values in registers, [`through_memory`](super::through_memory) has them in shared memory.
//!
//! ```text
//! forward                              gradient of q                         of k and v: rows are keys
//! sweep 1: max, sum, O += e · V        sweep 1: max, sum, Σ p·dp             the only sweep: values from scores, max, sum and
//! O / sum                              sweep 2: values, O += values · K        Σ p·dp;  O' += valuesᵀ · Q, O'' += pᵀ · dO
//! ```

use super::body::{Body, operands, sweeps};
use super::chain::Stream;
use super::contraction::define_entries;
use super::invariants::invariants;
use super::running::{Factors, Running};
use super::source::{
    combiner, constant, coordinates, is_narrow, memory_type, register_type, sum_type, value_name,
};
use kernfusion_ir::DType;
use kernfusion_ir::kernel::{Consumer, Contraction, Direction, Form, InstrKind, Kernel, Scalar, Store};
use std::collections::{BTreeMap, BTreeSet};

/// How the tiles of a chain lie. Code has a type `Tile`, and of each second product a type `Out<number>` and a tile `out<number>`.
pub(super) trait Layout {
    /// Declares types of tiles, shared memory and the tiles of second products.
    fn declare(&self, stream: &Stream<'_>, body: &mut Body<'_>);

    /// Values of columns that are there beside a tile's products: what they are at an entry.
    fn of_columns(&self) -> BTreeMap<Scalar, String>;

    /// A loop over tiles of columns, with their products, and with `inside` for each part of a tile's rows.
    fn each_tile(
        &self,
        stream: &Stream<'_>,
        body: &mut Body<'_>,
        needs: &Needs,
        inside: &mut dyn FnMut(&mut Body<'_>),
    );

    /// A loop over a part's entries. At each, `inside` writes `count` values to the places whose names it is given.
    fn each_value(&self, body: &mut Body<'_>, count: usize, inside: &mut dyn FnMut(&mut Body<'_>, &[String]));

    /// Multiplies the values of a part with the operands of their consumers.
    fn second_products(&self, stream: &Stream<'_>, body: &mut Body<'_>, needs: &Needs);
}

/// What a sweep needs at each tile.
pub(super) struct Needs {
    /// Which sweep it is.
    pub(super) number: usize,
    /// Products.
    pub(super) products: BTreeSet<usize>,
    /// Everything that entries are made of.
    pub(super) all: BTreeSet<Scalar>,
    pub(super) values: Vec<Value>,
}

/// A value that is multiplied again, as it is before it is rounded for that.
pub(super) struct Value {
    value: Scalar,
    /// The type that it has when it is multiplied.
    pub(super) dtype: DType,
    /// By which consumers.
    pub(super) consumers: Vec<usize>,
}

/// What a sweep over the columns finds.
#[derive(Default)]
struct Sweep {
    /// A maximum whose rising is made up for on the way, and the sum that is taken for 1 until the end.
    running: Running,
    /// Other reductions, with the factors of what they reduce.
    reductions: BTreeMap<Scalar, Factors>,
    /// Whether it stores and multiplies values.
    is_last: bool,
}

impl Stream<'_> {
    /// The whole function of a chain, but the operands of its products.
    pub(super) fn emit(&self, body: &mut Body<'_>, layout: &dyn Layout) {
        layout.declare(self, body);
        let of_rows = invariants(self.kernel, Direction::Columns);
        self.hoist(body, &of_rows, Direction::Columns);
        let chain = Sweeps { stream: self, layout, of_rows };
        self.band(body, self.kernel.stores.iter().any(|store| self.is_in_loop(store)));
        let mut reduced = vec![];
        for (number, sweep) in chain.sweeps().iter().enumerate() {
            chain.sweep(body, sweep, number, &reduced);
            reduced.extend(sweep.running.maximum);
            reduced.extend(sweep.reductions.keys());
        }
        (0..self.kernel.consumers().len()).for_each(|number| self.store_consumer(body, number));
        self.stores_of_rows(body, &reduced);
    }
}

/// A chain and how it lies.
struct Sweeps<'a> {
    stream: &'a Stream<'a>,
    layout: &'a dyn Layout,
    /// Values that are the same for all columns, and were computed before the first sweep.
    of_rows: BTreeSet<Scalar>,
}

impl Sweeps<'_> {
    fn kernel(&self) -> &Kernel {
        self.stream.kernel
    }

    fn stores_in_loop(&self) -> Vec<&Store> {
        self.kernel().stores.iter().filter(|store| self.stream.is_in_loop(store)).collect()
    }

    /// The sweeps, of which the first one finds whatever it can.
    fn sweeps(&self) -> Vec<Sweep> {
        let Kernel { region, stores, .. } = self.kernel();
        let values: Vec<_> = self.kernel().consumers().iter().map(|consumer| consumer.value).collect();
        let roots = stores.iter().flat_map(operands).chain(values.iter().copied());
        let live = region.needed(roots, |_| false);
        let levels = sweeps(region, &live);
        let running = Running::of(region, &levels.iter().flatten().copied().collect());
        let found = running.found();
        let reductions = running.reductions.clone();
        let finds_values = values.iter().all(|value| running.factors(*value).is_some());
        let is_last = finds_values && self.stores_in_loop().is_empty();
        let mut result = vec![];
        if !found.is_empty() || is_last {
            result.push(Sweep { running, reductions, is_last });
        }
        for level in levels {
            let rest = level.into_iter().filter(|value| !found.contains(value));
            let reductions: BTreeMap<_, _> = rest.map(|value| (value, Factors::default())).collect();
            if !reductions.is_empty() {
                result.push(Sweep { reductions, ..Sweep::default() });
            }
        }
        let has_last = !values.is_empty() || !self.stores_in_loop().is_empty();
        if has_last && !is_last {
            result.push(Sweep { is_last: true, ..Sweep::default() });
        }
        result
    }

    fn sweep(&self, body: &mut Body<'_>, sweep: &Sweep, number: usize, reduced: &[Scalar]) {
        let region = &self.kernel().region;
        let reductions = sweep.reductions.keys().chain(&sweep.running.maximum);
        for value in reductions.clone() {
            self.declare_reduction(body, *value, "sum");
        }
        if let Some(maximum) = sweep.running.maximum {
            self.declare_reduction(body, maximum, "subtracted");
        }
        let stores = if sweep.is_last { self.stores_in_loop() } else { vec![] };
        let values = if sweep.is_last { self.values() } else { vec![] };
        let roots = reductions.map(|value| reduced_value(self.kernel(), *value));
        let roots = roots.chain(stores.iter().flat_map(|store| operands(store)));
        let all = self.stream.needed(roots.chain(values.iter().map(|value| value.value)), reduced);
        let product = |value: &Scalar| match region.instr(*value).kind {
            InstrKind::Producer(number) => Some(number),
            _ => None,
        };
        let needs = Needs { number, products: all.iter().filter_map(product).collect(), all, values };
        self.layout.each_tile(self.stream, body, &needs, &mut |body| {
            self.inside_and_at_borders(body, |body, is_inside| {
                self.entries_of_tile(body, sweep, reduced, &stores, &needs, is_inside);
            });
            self.layout.second_products(self.stream, body, &needs);
        });
        self.finish(body, sweep);
    }

    /// The distinct values of second products.
    fn values(&self) -> Vec<Value> {
        let mut values: Vec<Value> = vec![];
        for (number, consumer) in self.kernel().consumers().iter().enumerate() {
            let (value, dtype) = (self.unrounded(consumer), self.kernel().region.instr(consumer.value).dtype);
            match values.iter_mut().find(|known| known.value == value && known.dtype == dtype) {
                Some(known) => known.consumers.push(number),
                None => values.push(Value { value, dtype, consumers: vec![number] }),
            }
        }
        values.sort_by_key(|value| value.value);
        values
    }

    fn unrounded(&self, consumer: &Consumer) -> Scalar {
        let region = &self.kernel().region;
        match region.instr(consumer.value).kind {
            InstrKind::Cast(x) if region.instr(x).dtype == DType::F32 => x,
            _ => consumer.value,
        }
    }

    fn declare_reduction(&self, body: &mut Body<'_>, value: Scalar, prefix: &str) {
        let region = &self.kernel().region;
        let dtype = sum_type(region.instr(value).dtype);
        let InstrKind::Reduce(op, ..) = region.instr(value).kind else { unreachable!("a reduction") };
        let (ty, name) = (register_type(dtype), value_name(value));
        let identity = constant(op.identity(dtype), dtype);
        body.code.line(format!("{ty} {prefix}_{name}[Tile::SLOTS];"));
        self.each_slot(body, &format!("{prefix}_{name}[slot] = {identity};"));
    }

    fn each_slot(&self, body: &mut Body<'_>, line: &str) {
        body.code.line("UNROLL");
        body.code.line(format!("for (int slot = 0; slot < Tile::SLOTS; slot++) {line}"));
    }

    /// Code for the entries of a tile, twice: without the checks that all entries pass where the tile lies inside of the domain and of the band.
    fn inside_and_at_borders(&self, body: &mut Body<'_>, inside: impl Fn(&mut Body<'_>, bool)) {
        let (rows, columns) = self.stream.row_and_column_extents();
        let [height, width] = self.stream.size;
        if rows < height || columns < width {
            return inside(body, false);
        }
        let last = format!("first_column + {}", width - 1);
        let mut conditions = vec![];
        if rows % height != 0 {
            conditions.push(format!("first_row + Tile::ROWS <= {rows}"));
        }
        if columns % width != 0 {
            conditions.push(format!("{last} < {columns}"));
        }
        if let Form::Contraction(Contraction { band: Some(band), .. }) = &self.kernel().form {
            conditions.extend(band.upper.map(|upper| format!("{last} <= first_row + {upper}")));
            conditions.extend(
                band.lower.map(|lower| format!("first_column >= first_row + Tile::ROWS - 1 + {lower}")),
            );
        }
        if conditions.is_empty() {
            return inside(body, true);
        }
        body.block(format!("if ({})", conditions.join(" && ")), |body| inside(body, true));
        body.block("else", |body| inside(body, false));
    }

    /// What becomes of a tile's entries: maxima, other reductions, stores, values that are multiplied again.
    fn entries_of_tile(
        &self,
        body: &mut Body<'_>,
        sweep: &Sweep,
        reduced: &[Scalar],
        stores: &[&Store],
        needs: &Needs,
        is_inside: bool,
    ) {
        let kernel = self.kernel();
        let mut known: BTreeMap<Scalar, String> =
            reduced.iter().map(|value| (*value, format!("sum_{}[slot]", value_name(*value)))).collect();
        known.extend(self.layout.of_columns());
        known.extend(self.of_rows.iter().map(|value| (*value, format!("row_{}[slot]", value_name(*value)))));
        if let Some(maximum) = sweep.running.maximum {
            self.raise(body, sweep, maximum, &known, is_inside);
            known.insert(maximum, format!("finite_maximum(subtracted_{}[slot])", value_name(maximum)));
            known.extend(sweep.running.norm.map(|norm| (norm, "1.0f".to_string())));
        }
        let values = needs.values.iter().map(|value| value.value);
        let of_reductions = || sweep.reductions.keys().map(|value| (*value, reduced_value(kernel, *value)));
        let roots = of_reductions().map(|(_, x)| x).chain(stores.iter().flat_map(|store| operands(store)));
        let roots: Vec<_> = roots.chain(values.clone()).collect();
        let inside = |body: &mut Body<'_>| {
            for (value, x) in of_reductions() {
                let InstrKind::Reduce(op, ..) = kernel.region.instr(value).kind else { unreachable!() };
                let sum = format!("sum_{}[slot]", value_name(value));
                body.code.line(format!("{sum} = {}::combine({sum}, {});", combiner(op), value_name(x)));
            }
            body.stores(stores.iter().copied());
        };
        match needs.values.len() {
            0 if roots.is_empty() => {}
            0 => self.entries(body, &roots, &known, is_inside, inside),
            count => self.layout.each_value(body, count, &mut |body, places| {
                self.entry(body, &roots, &known, is_inside, |body| {
                    inside(body);
                    for (place, value) in places.iter().zip(values.clone()) {
                        body.code.line(format!("{place} = {};", value_name(value)));
                    }
                });
            }),
        }
    }

    /// Takes the tile's maxima into those so far, and corrects sums.
    fn raise(
        &self,
        body: &mut Body<'_>,
        sweep: &Sweep,
        maximum: Scalar,
        known: &BTreeMap<Scalar, String>,
        is_inside: bool,
    ) {
        let (x, name) = (reduced_value(self.kernel(), maximum), value_name(maximum));
        self.declare_reduction(body, maximum, "of_tile");
        self.entries(body, &[x], known, is_inside, |body| {
            let largest = format!("of_tile_{name}[slot]");
            body.code.line(format!("{largest} = Max::combine({largest}, {});", value_name(x)));
        });
        body.code.line("float factors[Tile::SLOTS];");
        let rate = constant(sweep.running.rate, DType::F32);
        let arguments = format!("part, sum_{name}, subtracted_{name}, of_tile_{name}, {rate}, factors");
        body.block(format!("if (raise_maxima<Tile>({arguments}))"), |body| {
            self.scale(body, sweep, "factors", |of| of.shifted);
        });
    }

    /// Multiplies the sums of a part that were taken of such values.
    fn scale(&self, body: &mut Body<'_>, sweep: &Sweep, by: &str, of: impl Fn(Factors) -> bool) {
        for (value, _) in sweep.reductions.iter().filter(|(_, factors)| of(**factors)) {
            let sum = format!("sum_{}[slot] *= {by}[slot];", value_name(*value));
            body.code.line(format!("for_each_slot<Tile>(part, [&](int slot) {{ {sum} }});"));
        }
        let consumers = if sweep.is_last { self.consumers_with(&sweep.running, of) } else { vec![] };
        for number in consumers {
            body.code.line(format!("scale_rows(part, out{number}, {by});"));
        }
    }

    /// The second products whose values have such factors.
    fn consumers_with(&self, running: &Running, has: impl Fn(Factors) -> bool) -> Vec<usize> {
        let consumers = self.kernel().consumers().iter().enumerate();
        let having = consumers.filter(|(_, consumer)| running.factors(consumer.value).is_some_and(&has));
        having.map(|(number, _)| number).collect()
    }

    /// What happens at each entry of a part.
    fn entries(
        &self,
        body: &mut Body<'_>,
        roots: &[Scalar],
        known: &BTreeMap<Scalar, String>,
        is_inside: bool,
        inside: impl FnOnce(&mut Body<'_>),
    ) {
        body.code.line("UNROLL");
        let each = "for (int at = part * Tile::OF_PART; at < (part + 1) * Tile::OF_PART; at++)";
        body.block(each, |body| self.entry(body, roots, known, is_inside, inside));
    }

    /// What happens at an entry.
    fn entry(
        &self,
        body: &mut Body<'_>,
        roots: &[Scalar],
        known: &BTreeMap<Scalar, String>,
        is_inside: bool,
        inside: impl FnOnce(&mut Body<'_>),
    ) {
        let kernel = self.kernel();
        let domain = &kernel.domain;
        let reduced: Vec<_> = known.keys().copied().collect();
        let needed = self.stream.needed(roots.iter().copied(), &reduced);
        body.code
            .line("const int row = first_row + Tile::row(at), column = first_column + Tile::column(at);");
        if !is_inside {
            self.leave_out(body);
        }
        let outside = body.axes.names.len();
        let row = coordinates(&mut body.code, "row", 'r', &domain.axes[domain.row_axes()]);
        let column = coordinates(&mut body.code, "column", 'c', &domain.axes[domain.column_axes()]);
        body.axes.names.extend(row.into_iter().chain(column));
        body.code.line("const int slot = Tile::slot(at);");
        for (value, text) in known.iter().filter(|(value, _)| needed.contains(value)) {
            body.define(*value, text);
        }
        define_entries(body, kernel, Some(&needed));
        if let (true, Form::Contraction(Contraction { inside, .. })) = (is_inside, &kernel.form) {
            let holding = inside.iter().filter(|value| needed.contains(value));
            holding.for_each(|value| body.define(*value, "true"));
        }
        body.need(roots.iter().copied());
        inside(body);
        body.axes.names.truncate(outside);
    }

    /// Leaves out entries beyond the last row or column, where a tile may have such.
    fn leave_out(&self, body: &mut Body<'_>) {
        let (rows, columns) = self.stream.row_and_column_extents();
        let [height, width] = self.stream.size;
        let checks = [("row", rows, height), ("column", columns, width)];
        let checks = checks.iter().filter(|(_, extent, of_tile)| extent % of_tile != 0);
        let checks: Vec<_> = checks.map(|(name, extent, _)| format!("{name} >= {extent}")).collect();
        if !checks.is_empty() {
            body.code.line(format!("if ({}) continue;", checks.join(" || ")));
        }
    }

    /// Brings reductions together, divides by the norm what was not divided on the way, and takes powers as if the maximum itself had been
    /// subtracted; of what is divided by the norm, it does not matter what was.
    fn finish(&self, body: &mut Body<'_>, sweep: &Sweep) {
        let (region, running) = (&self.kernel().region, &sweep.running);
        for value in sweep.reductions.keys() {
            let InstrKind::Reduce(op, ..) = region.instr(*value).kind else { unreachable!("a reduction") };
            let combine =
                format!("Tile::template combine<{}>(part, sum_{});", combiner(op), value_name(*value));
            each_part(body, |body| body.code.line(combine));
        }
        if let Some(norm) = running.norm {
            body.code.line("float inverse[Tile::SLOTS];");
            self.each_slot(body, &format!("inverse[slot] = 1.0f / sum_{}[slot];", value_name(norm)));
            each_part(body, |body| self.scale(body, sweep, "inverse", |of| of.divided));
        }
        if let Some(maximum) = running.maximum {
            let (name, rate) = (value_name(maximum), constant(running.rate, DType::F32));
            let correction = format!("correction(sum_{name}[slot], subtracted_{name}[slot], {rate})");
            body.code.line("float corrections[Tile::SLOTS];");
            self.each_slot(body, &format!("corrections[slot] = {correction};"));
            each_part(body, |body| {
                self.scale(body, sweep, "corrections", |of| of.shifted && !of.divided);
            });
        }
        for value in sweep.reductions.keys().filter(|value| is_narrow(region.instr(**value).dtype)) {
            let (ty, name) = (memory_type(region.instr(*value).dtype), value_name(*value));
            self.each_slot(body, &format!("sum_{name}[slot] = round_to<{ty}>(sum_{name}[slot]);"));
        }
    }
}

/// A block for each part of a tile's rows.
pub(super) fn each_part(body: &mut Body<'_>, inside: impl FnOnce(&mut Body<'_>)) {
    body.block_with("for_each_part<Tile>([&](auto part)", ");", inside);
}

/// What a reduction along the columns reduces.
fn reduced_value(kernel: &Kernel, value: Scalar) -> Scalar {
    match kernel.region.instr(value).kind {
        InstrKind::Reduce(_, Direction::Columns, x) => x,
        _ => unreachable!("chains reduce along columns"),
    }
}
